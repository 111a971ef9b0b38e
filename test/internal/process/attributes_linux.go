package process

import "syscall"

// attributes puts a program into a process group of its own and ends it with this one, even if this
// one is killed.
func attributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
