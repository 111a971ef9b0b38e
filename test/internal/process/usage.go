package process

import (
	"errors"
	"fmt"
	"time"

	"github.com/prometheus/procfs"
)

// Usage is what a program uses, from /proc.
type Usage struct {
	CPU         time.Duration // since its start, in user and in kernel mode, to 10 ms
	Resident    uint64        // bytes of resident memory (RSS)
	Peak        uint64        // the highest RSS since its start
	Anonymous   uint64        // bytes of RSS that no file backs; the kernel can take back the rest, mostly code
	Received    uint64        // bytes that it has read from files and sockets
	Descriptors int           // open files and sockets
}

// Usage returns what the program uses.
func (p *Process) Usage() (u Usage, err error) {
	proc, err := procfs.NewProc(p.cmd.Process.Pid)
	if err != nil {
		return u, fmt.Errorf("read the usage of %s: %w", p.name, err)
	}
	stat, statErr := proc.Stat()
	status, statusErr := proc.NewStatus()
	io, ioErr := proc.IO()
	descriptors, descriptorsErr := proc.FileDescriptorsLen()
	if err := errors.Join(statErr, statusErr, ioErr, descriptorsErr); err != nil {
		return u, fmt.Errorf("read the usage of %s: %w", p.name, err)
	}
	return Usage{
		CPU:      time.Duration(stat.CPUTime() * float64(time.Second)),
		Resident: status.VmRSS, Peak: status.VmHWM, Anonymous: status.RssAnon,
		Received: io.RChar, Descriptors: descriptors,
	}, nil
}
