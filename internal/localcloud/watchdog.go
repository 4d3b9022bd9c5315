//go:build unix

package localcloud

import (
	"os"
	"os/exec"
	"syscall"
)

const (
	termSignal = syscall.SIGTERM
	killSignal = syscall.SIGKILL
)

// signalGroup signals every process of the group that pid leads.
func signalGroup(pid int, sig syscall.Signal) error { return syscall.Kill(-pid, sig) }

// watchdogScript runs its arguments and kills them when descriptor 3 reaches its
// end, which happens when the process that holds the other side is gone, however
// it went. SIGTERM reaches the whole group: the shell outlives it to wait for the
// child (the first wait ends early then).
const watchdogScript = `trap : TERM
"$@" 3<&- & child=$!
{ read -r _ <&3; kill -KILL "$child"; } >/dev/null 2>&1 &
exec 3<&-
wait "$child" || wait "$child"`

// watchdog ends a child with its parent on systems without a parent-death signal.
type watchdog struct{ read, write *os.File }

// newWatchdog returns the command line that runs argv under a watchdog; attach
// the watchdog to the command made of it, and Close it when the command has ended.
func newWatchdog(argv []string) ([]string, *watchdog, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, nil, err
	}
	return append([]string{"/bin/sh", "-c", watchdogScript, "watchdog"}, argv...), &watchdog{r, w}, nil
}

func (d *watchdog) attach(cmd *exec.Cmd) { cmd.ExtraFiles = []*os.File{d.read} }

// Close lets go of the pipe: a child that is still there is killed.
func (d *watchdog) Close() error {
	_ = d.read.Close()
	return d.write.Close()
}
