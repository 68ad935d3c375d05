package controlplane

import "syscall"

// processAttributes give a child a process group of its own, so that Ctrl-C
// reaches only this process, and end the child when this process ends, be it by
// a panic or a kill.
func processAttributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
