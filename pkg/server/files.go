package server

import (
	"context"
	"math"
	"syscall"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/klog/v2"
)

const (
	// otherFiles is the number of open files for everything but the connections to kubelets: clients,
	// the API server, requests in flight, files that are read again.
	otherFiles = 200
	// fileLimitInterval is the time between two comparisons with the number of nodes.
	fileLimitInterval = 10 * time.Second
)

// fileLimit returns how many files this process can have open. Go raises the soft limit to the hard
// one at the start of a process. Without a limit, or if it cannot be read, it returns the highest
// number.
func fileLimit() uint64 {
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return math.MaxUint64
	}
	return limit.Cur
}

// warnOfFileLimit logs once that the limit of open files is too low for the number of nodes. It
// returns then, or when the context ends. Each node has a connection that is kept.
func warnOfFileLimit(ctx context.Context, nodes func() int) {
	_ = wait.PollUntilContextCancel(ctx, fileLimitInterval, true, func(ctx context.Context) (bool, error) {
		n := nodes()
		limit, needed := fileLimit(), uint64(n)+otherFiles
		if limit < needed {
			klog.FromContext(ctx).Error(nil, "The limit of open files is too low for the number of nodes, so scrapes of some "+
				"nodes will fail; raise it where containers are started (LimitNOFILE of the container runtime, or ulimit -n)",
				"limit", limit, "needed", needed, "nodes", n)
		}
		return limit < needed, nil
	})
}
