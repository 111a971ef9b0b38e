package command

import (
	"fmt"
	"regexp"

	"k8s.io/apimachinery/pkg/util/yaml"
)

// AcceptKey returns the command that pins another key of a node's kubelet. The key is "sha256:" and 64
// hexadecimal digits.
func AcceptKey(namespace, configMap, node, uid, key string) string {
	return fmt.Sprintf("kubectl -n %s patch configmap %s --type=merge -p 'data: {%s: %s %s}'", namespace, configMap,
		yamlKey(Name(node, "NODE")), key, Name(uid, "UID"))
}

// acceptKey matches what AcceptKey returns.
var acceptKey = func() *regexp.Regexp {
	const name = `[a-z0-9][a-z0-9.-]{0,252}`
	return regexp.MustCompile(`^kubectl -n ` + name + ` patch configmap ` + name + ` --type=merge -p ` +
		`'data: \{(!!str )?(NODE|` + name + `): sha256:[0-9a-f]{64} (UID|` + name + `)\}'$`)
}()

// IsAcceptKey reports whether the text is a command as AcceptKey returns it, and nothing else.
func IsAcceptKey(text string) bool { return acceptKey.MatchString(text) }

// yamlKey returns the name of a node as a key in YAML, which reads 010 as 8 and no as false. It uses
// a tag, because the log would escape quotes.
func yamlKey(node string) string {
	var value any
	if err := yaml.Unmarshal([]byte(node), &value); err == nil {
		if _, isString := value.(string); isString {
			return node
		}
	}
	return "!!str " + node
}
