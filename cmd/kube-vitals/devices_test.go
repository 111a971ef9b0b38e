package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestDeviceFile(t *testing.T) {
	if c, err := parse(); err != nil || c.Devices != nil {
		t.Errorf("by default: got %+v, %v", c.Devices, err)
	}
	file := filepath.Join(t.TempDir(), "devices.yaml")
	if err := os.WriteFile(file, []byte("exporters: [{preset: x, interval: 1s}]\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if c, err := parse("--device-config=" + file); err != nil || c.Devices == nil || c.Devices.File != file {
		t.Errorf("got %+v, %v", c.Devices, err)
	}
	o := parsed(t, "--device-config="+file)
	o.checkFiles()
	text := fmt.Sprint(o.errs)
	for _, want := range []string{"--device-config: " + file, `preset is "x"`, "interval is 1s"} {
		if !strings.Contains(text, want) {
			t.Errorf("got %s, want %q", text, want)
		}
	}
}
