package cluster

import (
	"context"
	"slices"

	"github.com/kube-vitals/kube-vitals/test/internal/process"
)

// StopAPIServer ends the API server without a farewell. The rest of the control plane waits for it.
func (c *Cluster) StopAPIServer() {
	c.processes = slices.DeleteFunc(c.processes, func(p *process.Process) bool { return p == c.apiServer.process })
	c.apiServer.process.Kill()
}

// RestartAPIServer starts the API server that was stopped again, at the same address, with a new
// serving certificate of the cluster's CA, and waits until it is ready.
func (c *Cluster) RestartAPIServer(ctx context.Context) error {
	w := &keyWriter{ca: c.CA}
	w.pair(c.apiServer.certificate, c.CA, "kube-apiserver")
	if w.err != nil {
		return w.err
	}
	return c.runAPIServer(ctx)
}

// PauseAPIServer makes the API server accept connections and never answer, until ResumeAPIServer.
func (c *Cluster) PauseAPIServer() { c.apiServer.process.Pause() }

// ResumeAPIServer ends a pause.
func (c *Cluster) ResumeAPIServer() { c.apiServer.process.Resume() }
