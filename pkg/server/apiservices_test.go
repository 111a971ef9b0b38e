package server

import (
	"testing"

	"k8s.io/client-go/rest"

	"github.com/kube-vitals/kube-vitals/pkg/servingcert"
)

// TestWhoChecksTheAPIServices: an identity does, where there is one; a monitor by itself, where the
// Service is known.
func TestWhoChecksTheAPIServices(t *testing.T) {
	for name, c := range map[string]struct {
		config  servingcert.Config
		monitor bool
	}{
		"a certificate of our own":    {servingcert.Config{Secret: "serving", Names: []string{"a.b.svc"}, Service: "a.b.svc:443"}, false},
		"one from elsewhere":          {servingcert.Config{Service: "a.b.svc:443"}, true},
		"one from elsewhere, no name": {servingcert.Config{}, false},
	} {
		monitor, err := newMonitor(Config{ServingCert: c.config}, &rest.Config{Host: "http://api"})
		if err != nil || (monitor != nil) != c.monitor {
			t.Errorf("%s: %v, %v; want a monitor: %t", name, monitor, err, c.monitor)
		}
	}
}
