//go:build !linux

package system_test

import (
	"os/exec"
	"syscall"
)

// dieWithParent gives the process a group of its own. Without a signal at a parent's
// death, the cleanup of the test has to do.
func dieWithParent(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} }
