package event

import (
	"testing"
	"time"

	"github.com/kube-vitals/kube-vitals/pkg/reason"
)

// refresh makes refreshes of an engine end with this result for so long.
func (c *cluster) refresh(cause reason.Reason, d time.Duration) {
	for end := time.Now().Add(d); time.Now().Before(end); c.pass(interval / 4) {
		c.mu.Lock()
		c.overall.Add(time.Now(), 0, cause, nil)
		c.mu.Unlock()
	}
}

func TestEngineFailsAndRecovers(t *testing.T) {
	run(t, 0, func(c *cluster) {
		c.refresh("", time.Minute)
		c.refresh(reason.ConnectRefused, interval/2) // it has failed for less than an interval
		c.refresh("", time.Minute)
		c.refresh(reason.Canceled, time.Hour)
		c.want()
		c.refresh(reason.ConnectRefused, 3*interval)
		c.want("kube-vitals MetricsUnavailable connect-refused x1")
		e := c.recorded()[0]
		if e.InvolvedObject != theDeployment || e.Namespace != "kube-system" || e.Type != "Warning" {
			t.Errorf("got %+v", e)
		}
		const message = "kube-vitals cannot read the engine, so metrics expire: the engine's port refuses connections " +
			"(connect-refused): check that the engine runs, and the port of --prometheus-url; see " +
			"https://github.com/kube-vitals/kube-vitals/blob/main/docs/troubleshooting.md#engine-failing"
		if e.Message != message {
			t.Errorf("got message %q", e.Message)
		}
		c.refresh(reason.Timeout, 3*interval)
		c.want("kube-vitals MetricsUnavailable connect-refused x1", "kube-vitals MetricsUnavailable timeout x1")
		c.refresh("", 2*interval)
		c.want("kube-vitals MetricsUnavailable connect-refused x1", "kube-vitals MetricsUnavailable timeout x1",
			"kube-vitals MetricsRestored x1")
		if e := c.latest(); e.Type != "Normal" || e.Message != "kube-vitals can read the engine again" {
			t.Errorf("got %+v", e)
		}
	})
}

func TestEngineEventIsRepeated(t *testing.T) {
	run(t, 0, func(c *cluster) {
		c.refresh(reason.NoSamples, 2*time.Hour)
		c.want("kube-vitals MetricsUnavailable no-samples x4")
	})
}

func TestEngineEventNeedsTheDeployment(t *testing.T) {
	run(t, 0, func(c *cluster) {
		c.refuse("deployments", forbidden)
		c.refresh(reason.DNS, 5*interval)
		c.want()
		c.refuse("deployments", nil)
		c.refresh(reason.DNS, 2*interval)
		c.want("kube-vitals MetricsUnavailable dns x1")
	})
}
