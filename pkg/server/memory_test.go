package server

import (
	"testing"

	"github.com/kube-vitals/kube-vitals/pkg/api"
)

func TestListMemory(t *testing.T) {
	if got, want := listMemory(1<<30), (api.ListMemory{Large: 128 << 20, Small: 64 << 20, Max: 512 << 20}); got != want {
		t.Errorf("with a limit of 1 GiB: got %+v, want %+v", got, want)
	}
	if got, want := listMemory(0), (api.ListMemory{Large: 128 << 20, Small: 64 << 20, Max: 1 << 30}); got != want {
		t.Errorf("without a limit: got %+v, want %+v", got, want)
	}
}
