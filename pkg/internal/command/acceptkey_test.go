package command

import (
	"maps"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/util/yaml"

	"github.com/kube-vitals/kube-vitals/pkg/internal/command/commandtest"
)

const newKey = "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

// TestAcceptKeyWithHostileNames checks that no text that others choose is a part of the command.
func TestAcceptKeyWithHostileNames(t *testing.T) {
	const want = "kubectl -n kube-system patch configmap pins --type=merge -p 'data: {NODE: " + newKey + " UID}'"
	for _, text := range commandtest.Hostile() {
		got := AcceptKey("kube-system", "pins", text, text+"!", newKey)
		if got != want || !IsAcceptKey(got) {
			t.Errorf("%.50q: got %.500s, want %s", text, got, want)
		}
	}
}

// TestAcceptKeyNamesTheNode checks that kubectl, which parses patches as YAML, takes the node's name for
// the key of the entry.
func TestAcceptKeyNamesTheNode(t *testing.T) {
	for _, node := range []string{"n1.example.com", "10.0.0.1", "010", "1.10", "1e3", "no", "true"} {
		text := AcceptKey("kube-system", "pins", node, "u1", newKey)
		_, rest, _ := strings.Cut(text, " -p '")
		patch, _, _ := strings.Cut(rest, "'")
		var got struct{ Data map[string]string }
		if err := yaml.Unmarshal([]byte(patch), &got); err != nil {
			t.Errorf("%s: %v", patch, err)
		}
		if want := map[string]string{node: newKey + " u1"}; !maps.Equal(got.Data, want) || !IsAcceptKey(text) {
			t.Errorf("%s has %v, want %v", patch, got.Data, want)
		}
		if strings.Contains(patch, `"`) {
			t.Errorf("%s has quotes, which the log escapes", patch)
		}
	}
}

// TestIsAcceptKey has commands that differ from those of AcceptKey.
func TestIsAcceptKey(t *testing.T) {
	valid := AcceptKey("kube-system", "pins", "n1", "93d81b5e-0000", newKey)
	if !IsAcceptKey(valid) {
		t.Errorf("%s is not valid", valid)
	}
	invalid := []string{"", valid + ";id", valid + "\n", "x\n" + valid, valid + " " + valid, " " + valid}
	for before, after := range map[string]string{
		"kubectl -n": "kubectl --kubeconfig=x -n", "kube-system": "-oyaml", "pins": "--filename", "n1": "n1: x, n2",
		newKey: "sha256:1", "'}": "", "93d81b5e": "$(id)", "patch": "delete",
	} {
		invalid = append(invalid, strings.Replace(valid, before, after, 1))
	}
	for _, text := range commandtest.Hostile() {
		invalid = append(invalid, text, valid+text, strings.Replace(valid, "n1", text, 1))
	}
	for _, text := range invalid {
		if text != valid && IsAcceptKey(text) {
			t.Errorf("%.300q is accepted", text)
		}
	}
}
