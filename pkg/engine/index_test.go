package engine

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-vitals/kube-vitals/pkg/engine/decode"
)

// TestAddressOfAnotherNode has nodes that add the address of n1 to their status. Series with only the
// address stay those of n1, as long as it has the address.
func TestAddressOfAnotherNode(t *testing.T) {
	f := newFixture(t, "")
	ctx, lines := logLines(t)
	round := 0.0
	wantOwner := func(name, want string, logged ...string) {
		t.Helper()
		*lines = nil
		for range 20 { // in any order of the nodes
			f.reindex(ctx)
		}
		round += 2
		f.putCPU("node", `{instance="10.0.0.1:10250"}`, f.samples(-50+round, 1000, -35+round, 1030)...)
		f.mustRefresh()
		for _, n := range []string{"n0", "n1", "n2"} {
			usage := f.store.Node(n, f.clock.At(time.Now()))
			if has := usage != nil && usage.At == f.at(-35+round); has != (n == want) {
				t.Errorf("%s: %s has metrics: %v, want %s to have them", name, n, has, want)
			}
		}
		slices.Sort(*lines)
		if !slices.EqualFunc(*lines, logged, strings.Contains) {
			t.Errorf("%s: logged %q, want %q", name, *lines, logged)
		}
	}
	node := func(name string, hours int, addresses ...string) *corev1.Node {
		n := newNode(name, addresses[0])
		n.CreationTimestamp = metav1.NewTime(time.Now().Add(time.Duration(hours) * time.Hour))
		for _, a := range addresses[1:] {
			n.Status.Addresses = append(n.Status.Addresses, corev1.NodeAddress{Address: a})
		}
		return n
	}
	const own, other = "10.0.0.1", "10.0.0.2"
	conflict := func(owner, other string) string {
		return fmt.Sprintf(`"address"="10.0.0.1" "node"="%s" "otherNode"="%s"`, owner, other)
	}
	f.Set(node("n1", -1, own))
	wantOwner("alone", "n1")
	f.Set(node("n0", -60, other, own)) // older, and first by name
	wantOwner("an older node adds the address", "n1", conflict("n1", "n0"))
	wantOwner("again", "n1")
	f.Set(node("n0", -60, other))
	wantOwner("it removes the address", "n1")
	f.Set(node("n0", -60, other, own))
	wantOwner("it adds it again", "n1")
	f.Set(node("n0", -60, other))
	f.Set(node("n1", -1, own, other))
	f.Set(node("n2", -2, "10.0.0.3", own))
	wantOwner("both add one", "n1", conflict("n1", "n2"),
		`"address"="10.0.0.2" "node"="n0" "otherNode"="n1"`)
	f.index = nil // as after a restart
	wantOwner("the oldest of both", "n2")
	f.Delete("n2")
	wantOwner("the owner is deleted", "n1")
	f.Set(node("n2", 0, "10.0.0.3", own))
	wantOwner("it is created again", "n1", conflict("n1", "n2"))
}

// TestNodeOfLabel has labels with the address of a node in all forms. An IPv6 address whose last group
// looks like a port is not that of the node whose address is the rest.
func TestNodeOfLabel(t *testing.T) {
	f := newFixture(t, "")
	f.Set(newNode("v6", "fd00::1"))
	f.Set(newNode("longer", "fd00::1:10250"))
	f.reindex(t.Context())
	for value, want := range map[string]string{
		"10.0.0.1": "n1", "10.0.0.1:10250": "n1", "n1": "n1", "n1:10250": "n1",
		"fd00::1": "v6", "[fd00::1]": "v6", "[fd00::1]:10250": "v6",
		"fd00::1:10250": "longer", "[fd00::1:10250]:10250": "longer", "fd00::1:9100": "",
		"10.0.0.2:10250": "", ":10250": "", "[]": "", "fd00": "",
	} {
		name := f.client.settings.Labels.Node[0]
		n := f.nodeOf(&decode.Series{Labels: []decode.Label{{Name: []byte(name), Value: []byte(value)}}})
		got := ""
		if n != nil {
			got = n.name
		}
		if got != want {
			t.Errorf("%q: got node %q, want %q", value, got, want)
		}
	}
}
