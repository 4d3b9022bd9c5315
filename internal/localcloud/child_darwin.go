package localcloud

import (
	"os/exec"
	"syscall"
)

func setProcessGroup(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
}

// guard stands in for the parent-death signal that macOS lacks.
func guard(argv []string) ([]string, *watchdog, error) { return newWatchdog(argv) }
