package command

import (
	"strings"
	"testing"

	"github.com/kube-vitals/kube-vitals/pkg/internal/command/commandtest"
)

func TestName(t *testing.T) {
	for _, name := range []string{"n1", "csr-2qkdw", "ip-10-0-0-1.eu-central-1.compute.internal",
		strings.Repeat("a", 253)} {
		if got := Name(name, "NAME"); got != name {
			t.Errorf("%q: got %q", name, got)
		}
	}
	for _, name := range commandtest.Hostile() {
		if got := Name(name, "NAME"); got != "NAME" {
			t.Errorf("%q: got %q", name, got)
		}
	}
}
