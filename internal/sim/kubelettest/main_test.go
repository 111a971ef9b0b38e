package kubelettest

import (
	"testing"

	"github.com/kube-vitals/kube-vitals/internal/leaktest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }
