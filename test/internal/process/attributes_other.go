//go:build !linux

package process

import "syscall"

// attributes puts a program into a process group of its own. Outside of Linux nothing ends it if
// this one is killed.
func attributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true}
}
