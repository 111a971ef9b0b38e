package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestDebian fetches programs with a double of apt-get, which has one package, and breaks at another one.
func TestDebian(t *testing.T) {
	bin, folder := t.TempDir(), filepath.Join(t.TempDir(), "debian")
	script := func(name, text string) {
		if err := os.WriteFile(filepath.Join(bin, name), []byte("#!/bin/sh\n"+text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	script("installed", "")
	script("apt-get", `echo "$@" >>`+filepath.Join(bin, "log")+`
for last; do :; done
case $last in
  update) ;;
  good) echo archive >good_1_amd64.deb ;;
  *) echo "E: connection timed out"; exit 100 ;;
esac
`)
	script("dpkg-deb", "/bin/mkdir -p usr/bin && echo program >usr/bin/extracted\n")
	t.Setenv("PATH", bin)

	var out bytes.Buffer
	missing, err := debian{folder: folder, out: &out}.fetch(t.Context(), []debianProgram{
		{names: []string{"other", "installed"}, pkg: "unneeded", tests: "none"},
		{names: []string{"extracted"}, pkg: "good", tests: "the tests of good"},
		{names: []string{"broken"}, pkg: "bad", tests: "the tests of bad"},
	})
	if err != nil || len(missing) != 1 || missing[0].pkg != "bad" {
		t.Errorf("got the missing programs %v and error %v, want those of the package bad", missing, err)
	}
	if !strings.Contains(out.String(), "E: connection timed out") {
		t.Errorf("the output does not show why a download failed:\n%s", out.String())
	}
	names, err := filepath.Glob(filepath.Join(folder, "*"))
	if err != nil || len(names) != 1 || filepath.Base(names[0]) != "extracted" {
		t.Errorf("the folder has %v, want only the executable of the good package", names)
	}
	log, err := os.ReadFile(filepath.Join(bin, "log"))
	if err != nil || strings.Contains(string(log), "unneeded") || !strings.Contains(string(log), "Acquire::Retries") {
		t.Errorf("apt-get ran with\n%s%v", log, err)
	}

	skipped := filepath.Join(t.TempDir(), "skipped")
	if err := writeSkipped(skipped, missing); err != nil {
		t.Fatal(err)
	}
	const want = "skipped: the tests of bad: install broken (apt-get install bad)\n"
	if text, err := os.ReadFile(skipped); err != nil || string(text) != want {
		t.Errorf("got %q, %v, want %q", text, err, want)
	}
}
