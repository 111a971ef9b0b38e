package device

import (
	"log/slog"
	"testing"

	"k8s.io/klog/v2"

	"github.com/kube-vitals/kube-vitals/internal/leaktest"
)

func TestMain(m *testing.M) {
	klog.SetSlogLogger(slog.New(slog.DiscardHandler))
	leaktest.Main(m)
}
