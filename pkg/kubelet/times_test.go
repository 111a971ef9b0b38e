package kubelet

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/kube-vitals/kube-vitals/pkg/kubelet/kubelettest"
	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

// TestTimesOfAResponse looks at the moments by our clock, and at the Date header, in both
// responses.
func TestTimesOfAResponse(t *testing.T) {
	resource, summary := realSample(t), readSummary(t, shortSummary)
	const sent = "Fri, 20 Nov 2026 20:16:08 GMT"
	start := time.Now()
	clock := usage.NewClock(start.Add(-time.Hour)) // not the one that would be made by default
	for name, fetch := range askings() {
		for date, want := range map[string]usage.Time{
			sent:                             usage.Time(1795205768 * 1e9),
			"Friday, 20-Nov-26 20:16:08 GMT": usage.Time(1795205768 * 1e9), // RFC 850
			"":                               0,
			"1795205768":                     0,
			"Thu, 01 Jan 1970 00:00:00 GMT":  0,
			"Sat, 01 Jan 0001 00:00:00 GMT":  0,
			"Fri, 31 Dec 9999 23:59:59 GMT":  0,
		} {
			t.Run(name+"/"+date, func(t *testing.T) {
				k := newKubelet(t, nil, func(w http.ResponseWriter, r *http.Request) {
					if w.Header()["Date"] = nil; date != "" {
						w.Header().Set("Date", date)
					}
					answerBoth(w, r, resource, summary)
				})
				c := newTestClient(t, Config{PlainHTTP: true, Clock: clock})
				var dst usage.Scrape
				for range 2 { // over a new connection, and over the one that was kept
					before := clock.At(time.Now())
					if err := fetch(c, t.Context(), k.node("node1"), &dst); err != nil {
						t.Fatal(err)
					}
					if after := clock.At(time.Now()); before > dst.Sent || dst.Sent > dst.At || dst.At > after {
						t.Errorf("sent at %v, arrived at %v, want both in their order between %v and %v", dst.Sent, dst.At, before, after)
					}
					if dst.Date != want {
						t.Errorf("the date is %v, want %v", dst.Date.Time(), want.Time())
					}
				}
			})
		}
	}
}

// TestNodesClock has the clock of a node be wrong, with and without a Date header that shows it.
func TestNodesClock(t *testing.T) {
	for name, tt := range map[string]struct {
		ahead  time.Duration
		faults []kubelettest.Fault
		reason string // of the error; empty: there is none
		text   string
	}{
		"right":                            {},
		"5 hours ahead":                    {ahead: 5 * time.Hour},
		"10 years ahead":                   {ahead: 10 * 365 * 24 * time.Hour},
		"5 hours behind":                   {ahead: -5 * time.Hour},
		"half an hour ahead, without Date": {ahead: 30 * time.Minute, faults: []kubelettest.Fault{kubelettest.NoDate}},
		"5 hours behind, without Date":     {ahead: -5 * time.Hour, faults: []kubelettest.Fault{kubelettest.NoDate}},
		"samples half a minute after Date": {faults: []kubelettest.Fault{kubelettest.ShiftTime(30 * time.Second), kubelettest.ShiftSummaryTime(30 * time.Second)}},
		"5 hours ahead, without Date":      {5 * time.Hour, []kubelettest.Fault{kubelettest.NoDate}, reasonBadTime, "which is in the future"},
		"samples 2 minutes after Date":     {0, []kubelettest.Fault{kubelettest.ShiftTime(2 * time.Minute), kubelettest.ShiftSummaryTime(2 * time.Minute)}, reasonBadTime, "set the node's clock"},
		"all wrong, samples 5 hours ahead": {-time.Hour, []kubelettest.Fault{kubelettest.ShiftTime(5 * time.Hour), kubelettest.ShiftSummaryTime(5 * time.Hour)}, reasonBadTime, "and the node's clock shows "},
		"samples of the next century":      {0, []kubelettest.Fault{kubelettest.ShiftTime(100 * 365 * 24 * time.Hour), kubelettest.ShiftSummaryTime(100 * 365 * 24 * time.Hour)}, reasonBadTime, "set the node's clock"},
	} {
		for which, fetch := range askings() {
			t.Run(which+"/"+name, func(t *testing.T) {
				k := kubelettest.New("n7", kubelettest.Config{})
				k.SetClockOffset(tt.ahead)
				k.SetNode(kubelettest.Usage{CPU: 1, Memory: 1 << 30})
				k.SetContainer("default", "web-0", "app", kubelettest.Usage{CPU: 0.5, Memory: 1 << 20})
				k.SetFaults(tt.faults...)
				node := nodeAt("n7", k.Start(t, nil).String())
				var dst usage.Scrape
				err := fetch(newTestClient(t, Config{PlainHTTP: true}), t.Context(), node, &dst)
				if tt.reason != "" {
					checkError(t, err, tt.reason, tt.text)
					return
				}
				if err != nil {
					t.Fatal(err)
				}
				if dst.Skipped != [usage.NumReasons]int{} || dst.Node.Has == 0 || len(dst.Containers) != 1 || dst.Containers[0].Has == 0 {
					t.Fatalf("it is read as %+v", dst)
				}
				for _, at := range []usage.Time{dst.Node.At, dst.Containers[0].At} {
					if off := at.Sub(dst.At.Add(tt.ahead)); off.Abs() > 32*time.Second { // a summary's times are cut, and one fault adds 30 s
						t.Errorf("a sample is from %v, but arrived at %v", at.Time(), dst.At.Time())
					}
				}
				if dst.Node.Untimed || dst.Containers[0].Untimed {
					t.Error("the samples have times of their own")
				}
			})
		}
	}
}

// TestUntimed: samples without a time of their own have that of the scrape by our clock, whatever
// the node's clock shows.
func TestUntimed(t *testing.T) {
	for which, fetch := range askings() {
		t.Run(which, func(t *testing.T) {
			k := kubelettest.New("n7", kubelettest.Config{})
			k.SetClockOffset(-time.Hour)
			k.SetNode(kubelettest.Usage{CPU: 1})
			k.SetContainer("default", "web-0", "app", kubelettest.Usage{CPU: 0.5})
			k.SetContainer("default", "web-0", "timed", kubelettest.Usage{CPU: 0.5})
			onlyOne := kubelettest.Edit(func(text []byte) []byte {
				var b strings.Builder
				for line := range strings.Lines(string(text)) {
					if fields := strings.Fields(line); !strings.Contains(line, "timed") && !strings.HasPrefix(line, "#") && len(fields) == 3 {
						line = fields[0] + " " + fields[1] + "\n"
					}
					b.WriteString(line)
				}
				return []byte(b.String())
			})
			onlyOneSummary := kubelettest.EditSummary(func(json []byte) []byte {
				return []byte(strings.ReplaceAll(string(json), `"time": "`, `"tim": "`))
			})
			k.SetFaults(onlyOne, onlyOneSummary)
			var dst usage.Scrape
			err := fetch(newTestClient(t, Config{PlainHTTP: true}), t.Context(), nodeAt("n7", k.Start(t, nil).String()), &dst)
			if err != nil {
				t.Fatal(err)
			}
			check := func(name string, s usage.Sample) {
				untimed := name != "timed" || which == "FetchSummary"
				if s.Untimed != untimed || (s.At == dst.At) != untimed {
					t.Errorf("%s: untimed %v, from %v; want %v; it arrived at %v", name, s.Untimed, s.At.Time(), untimed, dst.At.Time())
				}
			}
			check("node", dst.Node)
			for _, c := range dst.Containers {
				check(string(c.Name), c.Sample)
			}
			if len(dst.Containers) != 2 {
				t.Errorf("%d containers, want 2", len(dst.Containers))
			}
		})
	}
}

// TestALargeNodeIsComplete sends 2000 pods of 3 containers, which is far within the limit on bytes.
func TestALargeNodeIsComplete(t *testing.T) {
	const pods, each = 2000, 3
	var text strings.Builder
	for _, metric := range []string{"container_cpu_usage_seconds_total", "container_memory_working_set_bytes"} {
		for i := range each {
			for p := range pods {
				fmt.Fprintf(&text, "%s{container=\"c%d\",namespace=\"n\",pod=\"p%d\"} 1 1795205767486\n", metric, i, p)
			}
		}
	}
	summary := largeSummary(pods, each)
	for name, fetch := range askings() {
		t.Run(name, func(t *testing.T) {
			k := newKubelet(t, nil, func(w http.ResponseWriter, r *http.Request) { answerBoth(w, r, []byte(text.String()), summary) })
			c := newTestClient(t, Config{PlainHTTP: true, MaxBodyBytes: max(DefaultMaxBodyBytes, int64(len(summary)))})
			var dst usage.Scrape
			if err := fetch(c, t.Context(), k.node("node1"), &dst); err != nil {
				t.Fatal(err)
			}
			if len(dst.Containers) != pods*each || dst.Partial || dst.Skipped != [usage.NumReasons]int{} {
				t.Errorf("%d of %d containers in %d bytes, partial %v, skipped %v", len(dst.Containers), pods*each, text.Len(), dst.Partial, dst.Skipped)
			}
		})
	}
	if text.Len() > 1200<<10 {
		t.Errorf("the text has %d bytes", text.Len())
	}
}
