package main

import "syscall"

// group returns the attributes of a process with a group of its own, which ends with this one.
func group() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
