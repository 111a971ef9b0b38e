package kubelet

import (
	"os"
	"reflect"
	"testing"
	"time"

	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

const (
	shortSummary = "testdata/kubelet-1.36-summary-cpu-memory.json"
	fullSummary  = "testdata/kubelet-1.36-summary.json" // with all that a kubelet tells when it is asked for everything
)

func readSummary(t testing.TB, file string) []byte {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func TestSummarySample(t *testing.T) {
	var d summaryDecoder
	var dst usage.Scrape
	if err := d.decode(&dst, readSummary(t, shortSummary), scrapedAt); err != nil {
		t.Fatal(err)
	}
	got := summarize(&dst)
	t.Logf("%+v", got)
	_ = reflect.DeepEqual
	_ = time.Second
}
