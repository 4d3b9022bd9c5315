package system_test

import (
	"os/exec"
	"syscall"
)

// dieWithParent gives the process a group of its own, and has the kernel kill it
// with the test binary.
func dieWithParent(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
