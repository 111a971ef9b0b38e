package process

import "syscall"

// attributes starts a program in its own process group. The program is killed when this one ends.
func attributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
