package kubelet

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"testing"
	"time"

	"github.com/kube-vitals/kube-vitals/pkg/kubelet/kubelettest"
)

const shortSummary = "decode/testdata/kubelet-1.36-summary-cpu-memory.json"

// realSample returns the response of a real kubelet to /metrics/resource.
func realSample(t testing.TB) []byte {
	t.Helper()
	return readSummary(t, "decode/testdata/kubelet-1.36-resource.txt")
}

// readSummary returns the content of a file.
func readSummary(t testing.TB, file string) []byte {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// largeAnswer returns the response of a kubelet with many pods to /metrics/resource.
func largeAnswer(pods, containersPerPod int) []byte {
	return largeResponse(kubelettest.ResourcePath, pods, containersPerPod)
}

// largeSummary returns the response of a kubelet with many pods to /stats/summary.
func largeSummary(pods, containersPerPod int) []byte {
	return largeResponse(summaryPath+"?"+summaryQuery, pods, containersPerPod)
}

func largeResponse(path string, pods, containersPerPod int) []byte {
	now := time.Now()
	k := kubelettest.New("node1", kubelettest.Config{Now: func() time.Time { return now }, Boot: now.Add(-time.Hour)})
	k.SetNode(kubelettest.Usage{CPU: 1.5, Memory: 1 << 30})
	for p := range pods {
		for c := range containersPerPod {
			k.Run(fmt.Sprintf("namespace-%d", p%3), fmt.Sprintf("deployment-546ccb4d55-%05d", p), fmt.Sprintf("app-%d", c),
				kubelettest.Usage{CPU: 0.125, Memory: 1 << 20}, now.Add(-time.Minute))
		}
	}
	w := httptest.NewRecorder()
	k.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
	return w.Body.Bytes()
}
