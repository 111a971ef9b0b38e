//go:build !linux

package process

import "syscall"

// attributes starts a program in its own process group. Outside of Linux, it survives if this one
// is killed.
func attributes() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }
