package server

import (
	"fmt"
	"os"
	"strings"

	"github.com/kube-vitals/kube-vitals/test/internal/cluster"
	"github.com/kube-vitals/kube-vitals/test/internal/process"
)

// StartReplica runs the program once more, as another pod of the Deployment, and returns at once.
// It has a port and a log of its own; flags that are given win over those of the first one. The
// Service does not lead to it.
func (s *Server) StartReplica(args ...string) (*Server, error) {
	ports, err := cluster.FreePorts(1)
	if err != nil {
		return nil, err
	}
	replica := *s
	replica.Address = fmt.Sprintf("127.0.0.1:%d", ports[0])
	replica.flags = append(append([]string(nil), s.flags...), fmt.Sprintf("--secure-port=%d", ports[0]))
	replica.flags = append(replica.flags, args...)
	replica.log = s.cluster.File(fmt.Sprintf("%s-%d.log", Release, ports[0]))
	replica.process, err = process.Start(process.Config{Path: s.binary, Args: replica.flags, Log: replica.log})
	if err != nil {
		return nil, err
	}
	return &replica, nil
}

// Log is all that the program has logged.
func (s *Server) Log() (string, error) {
	text, err := os.ReadFile(s.log)
	if err != nil {
		return "", fmt.Errorf("there is no log: %w", err)
	}
	return string(text), nil
}

// Running returns nil while the program runs, and afterwards an error that says how it ended.
func (s *Server) Running() error { return s.process.Running() }

// Kill ends the program without a farewell.
func (s *Server) Kill() { s.process.Kill() }

// Port is that of Address.
func (s *Server) Port() string {
	_, port, _ := strings.Cut(s.Address, ":")
	return port
}
