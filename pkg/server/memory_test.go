package server

import (
	"testing"

	"github.com/kube-vitals/kube-vitals/pkg/api"
)

func TestResponseMemory(t *testing.T) {
	limited := api.ResponseMemory{Large: 128 << 20, Small: 64 << 20, Max: 512 << 20}
	if got := responseMemory(1 << 30); got != limited {
		t.Errorf("with a limit of 1 GiB: got %+v, want %+v", got, limited)
	}
	unlimited := api.ResponseMemory{Large: 128 << 20, Small: 64 << 20, Max: 1 << 30}
	if got := responseMemory(0); got != unlimited {
		t.Errorf("without a limit: got %+v, want %+v", got, unlimited)
	}
}
