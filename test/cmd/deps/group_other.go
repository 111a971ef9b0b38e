//go:build !linux

package main

import "syscall"

// group returns the attributes of a process with a group of its own.
func group() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }
