package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/kube-vitals/kube-vitals/internal/sim/kubelettest"
	"github.com/kube-vitals/kube-vitals/test/internal/binaries"
	"github.com/kube-vitals/kube-vitals/test/internal/cluster"
	"github.com/kube-vitals/kube-vitals/test/internal/process"
)

const nodezPath = "/nodez"

// nodez is a part of the page of nodes as JSON.
type nodez struct {
	MaxSampleAgeSeconds float64
	Totals              struct {
		Nodes, FailingNodes, NodesWithMetrics, Pods, PodsWithMetrics int

		Reasons map[string]int
	}
	Nodes []struct {
		Name, Address, State, Reason, Problem, Cure, URL, Error string

		Active                    bool
		LastSuccess, FailingSince time.Time
		MetricsAgeSeconds         *float64
		ClockSkewSeconds          float64
		Pods, RunningPods         int
	}
}

func decodeNodez(t *testing.T, body []byte) (page nodez) {
	t.Helper()
	if err := json.Unmarshal(body, &page); err != nil {
		t.Fatalf("decode %s: %v", body, err)
	}
	return page
}

// TestNodez checks that the page of nodes needs the permission for its path only, and that it has the
// reason why a node fails. TestAnonymousAccess and TestUnauthorizedUser request it without that
// permission.
func TestNodez(t *testing.T) {
	t.Parallel()
	const failing, user = "nodez-failing", "nodez-reader"
	addNode(t, failing)
	shared.awaitNewer(t, failing, time.Time{})
	shared.Simulation.Kubelet(failing).SetFaults(kubelettest.Status(http.StatusInternalServerError))
	shared.kubectl(t, "create", "clusterrolebinding", user, "--user="+user,
		"--clusterrole=system:"+cluster.Release+"-nodez-reader")
	cleanUp(t, func(ctx context.Context) error {
		_, err := shared.Kubectl(ctx, "delete", "clusterrolebinding", user)
		return err
	})
	reader := shared.as(t, shared.server, user, "")
	reader.header.Set("Accept", "application/json, */*") // as kubectl get --raw
	eventually(t, "the failure on the page", func(ctx context.Context) error {
		body, err := reader.getOK(ctx, nodezPath)
		if err != nil {
			return err
		}
		page := decodeNodez(t, body)
		found := map[string]string{}
		for _, n := range page.Nodes {
			found[n.Name] = n.State
			if n.Name == failing && (n.Reason != "server-error" || n.Problem == "" || n.Cure == "" ||
				!strings.HasSuffix(n.URL, "#server-error") || !strings.Contains(n.Error, "500") ||
				strings.Contains(n.Error, n.Cure) || n.Address == "" || n.LastSuccess.IsZero() ||
				n.FailingSince.Before(n.LastSuccess)) {
				return fmt.Errorf("the failing node is described as %+v", n)
			}
		}
		if found[failing] != "failing" || found["node-01"] != "ready" || page.Totals.FailingNodes == 0 ||
			page.Totals.Reasons["server-error"] == 0 || page.Totals.Nodes < sharedNodes ||
			page.Totals.NodesWithMetrics < sharedNodes {
			return fmt.Errorf("got states %v, totals %+v", found, page.Totals)
		}
		return nil
	})

	for accept, want := range map[string]string{
		"text/html":  `data-reason="server-error"`,
		"text/plain": failing + " ",
	} {
		reader.header.Set("Accept", accept)
		body, err := reader.getOK(t.Context(), nodezPath)
		if err != nil || !strings.Contains(string(body), want) {
			t.Errorf("%s: got %v, want %q in\n%s", accept, err, want, body)
		}
	}

	// Only the path of the page is allowed.
	for _, path := range []string{"/metrics", "/statusz", "/flagz", nodesPath} {
		reader.wantStatus(t, path, http.StatusForbidden)
	}
}

// TestNodezWithKubectl runs the commands of docs/why-no-metrics.md, with the address of the server instead of
// that of a port-forward, which needs a real kubelet.
func TestNodezWithKubectl(t *testing.T) {
	t.Parallel()
	ca := shared.File("nodez-ca.crt")
	must(t, os.WriteFile(ca, shared.server.CA, 0o600))
	token := strings.TrimSpace(shared.kubectl(t, inNamespace, "create", "token", cluster.Release, "--duration=10m"))
	flags := []string{
		"--kubeconfig=/dev/null", "--server=https://" + shared.server.Address, "--token=" + token,
		"--certificate-authority=" + ca, "--tls-server-name=" + shared.server.Host,
	}
	shared.awaitOutput(t, has(`"name":"node-01"`), append(flags, "get", "--raw", nodezPath)...)
	shared.awaitOutput(t, has("\nnode-01 "), append(flags, "get", "--raw", nodezPath+"?format=text")...)

	proxy, err := process.Start(process.Config{
		Path: shared.Binary(binaries.Kubectl), Args: append(flags, "proxy", "--port=0"), Log: shared.File("nodez-proxy.log"),
	})
	must(t, err)
	t.Cleanup(proxy.Kill)
	var page string
	eventually(t, "the page through kubectl proxy", func(ctx context.Context) error {
		_, address, found := strings.Cut(proxy.Tail(), "Starting to serve on ")
		if !found {
			return fmt.Errorf("kubectl proxy: %s", proxy.Tail())
		}
		address, _, _ = strings.Cut(address, "\n")
		body, contentType, err := cluster.Get(ctx, http.DefaultClient, "http://"+address+nodezPath,
			"text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8")
		if page = string(body); err == nil && !strings.HasPrefix(contentType, "text/html") {
			err = fmt.Errorf("got %s: %s", contentType, page)
		}
		return err
	})
	if !strings.HasPrefix(page, "<!DOCTYPE html>") || !strings.Contains(page, ">node-01<") {
		t.Errorf("got %s", page)
	}
}
