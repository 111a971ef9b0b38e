package kubelet

import (
	"net"
	"slices"
	"testing"
	"time"

	"github.com/kube-vitals/kube-vitals/pkg/kubelet/kubelettest"
	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

// TestFaults goes through every way in which a fake kubelet can misbehave. After each, all that is
// intact must be there, and the next answer must be read as if nothing had been.
func TestFaults(t *testing.T) {
	const cpu, memory, swap = usage.HasCPU, usage.HasMemory, usage.HasSwap
	type want struct {
		reason  string         // of the error; empty: there is none
		has     usage.Has      // of the one container; meaningful without an error
		skipped []usage.Reason // for which lines are left out
		partial bool           // whether containers may be missing
	}
	intact := want{has: cpu | memory | swap}
	tests := map[string]want{
		"refuse":                              {reason: reasonConnection},
		"hang":                                {reason: reasonTimeout},
		"late":                                intact,
		"slow":                                intact,
		"status 401":                          {reason: reasonUnauthorized},
		"status 403":                          {reason: reasonForbidden},
		"status 404":                          {reason: reasonNotFound},
		"status 500":                          {reason: reasonServer},
		"redirect":                            {reason: reasonStatus},
		"html":                                {reason: reasonContentType},
		"garbage":                             {reason: reasonNoSamples},
		"empty":                               {reason: reasonNoSamples},
		"half body":                           {reason: reasonTruncated},
		"cut text":                            {},
		"endless body":                        {reason: reasonTooLarge},
		"endless line":                        {reason: reasonTooLarge},
		"gzip bomb":                           {reason: reasonContentEncoding},
		"wrong encoding":                      {reason: reasonContentEncoding},
		"unknown encoding":                    {reason: reasonContentEncoding},
		"duplicate series":                    {has: cpu | memory | swap, skipped: []usage.Reason{usage.Duplicate}},
		"contradictory series":                {has: cpu | memory | swap, skipped: []usage.Reason{usage.Duplicate}},
		"line without labels":                 {has: cpu | memory | swap, skipped: []usage.Reason{usage.NoIdentity}, partial: true},
		"odd labels":                          intact,
		"NaN":                                 {has: memory | swap, skipped: []usage.Reason{usage.BadValue}},
		"infinite":                            {has: memory | swap, skipped: []usage.Reason{usage.BadValue}},
		"negative":                            {has: cpu | swap, skipped: []usage.Reason{usage.BadValue}},
		"no start time":                       intact,
		"no memory":                           {has: cpu | swap},
		"time of tomorrow":                    {reason: reasonBadTime},
		"time of yesterday":                   intact,
		"no time":                             intact,
		"no date":                             intact,
		"moved start times":                   intact,
		"start times that follow the samples": intact,
		"CRLF":                                intact,
		"no final newline":                    {has: cpu | memory | swap, skipped: []usage.Reason{usage.Malformed}, partial: true},
		"scrape error":                        {reason: reasonUnread},
	}
	ca := kubelettest.NewCA()
	authorityFile := writeFile(t, t.TempDir(), "ca", ca.PEM())
	certificate := ca.Issue([]string{"n7"}, []net.IP{net.IPv4(127, 0, 0, 1)})
	for _, fault := range kubelettest.Faults() {
		want, known := tests[fault.Name]
		delete(tests, fault.Name)
		t.Run(fault.Name, func(t *testing.T) {
			if !known {
				t.Fatal("nothing says what is to come of this fault")
			}
			k := kubelettest.New("n7", kubelettest.Config{})
			k.SetNode(kubelettest.Usage{CPU: 1, Memory: 1 << 30})
			k.SetContainer("default", "web-0", "app", kubelettest.Usage{CPU: 0.5, Memory: 1 << 20})
			node := nodeAt("n7", k.Start(t, &certificate).String())
			timeout := 30 * time.Second
			if want.reason == reasonTimeout {
				timeout = 50 * time.Millisecond
			}
			c := newTestClient(t, Config{CertificateAuthority: authorityFile, MaxBodyBytes: 128 << 10, Timeout: timeout})

			k.SetFaults(fault.Fault)
			var got usage.Scrape
			err := c.Fetch(t.Context(), node, &got)
			switch {
			case want.reason != "":
				checkError(t, err, want.reason, "")
			case err != nil:
				t.Errorf("the answer is refused: %v", err)
			case fault.Name != "cut text": // where that one is cut is not said
				i := slices.IndexFunc(got.Containers, func(s usage.ContainerSample) bool { return string(s.Name) == "app" })
				if i < 0 || got.Containers[i].Has != want.has || got.Partial != want.partial {
					t.Errorf("got %+v, want a container with %b, partial %v", got, want.has, want.partial)
				}
				for reason, n := range got.Skipped {
					if (n > 0) != slices.Contains(want.skipped, usage.Reason(reason)) {
						t.Errorf("%d lines skipped as %v, want such for %v only", n, usage.Reason(reason), want.skipped)
					}
				}
			}

			k.SetFaults()
			if want.reason == reasonTimeout {
				return // what is left of the time may not suffice on a busy machine
			}
			if err := c.Fetch(t.Context(), node, &got); err != nil {
				t.Fatalf("the next answer is refused: %v", err)
			}
			if n := len(got.Containers); n != 1 || got.Containers[0].Has != intact.has || got.Node.Has == 0 ||
				got.Skipped != [usage.NumReasons]int{} || got.Partial {
				t.Errorf("the next answer is read as %+v", got)
			}
		})
	}
	for name := range tests {
		t.Errorf("there is no fault %q", name)
	}
}
