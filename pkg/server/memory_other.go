//go:build !linux

package server

// unmapExecutable does nothing where it is not known how.
func unmapExecutable() {}
