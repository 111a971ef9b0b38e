package reload

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"
)

func TestReload(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		path := filepath.Join(dir, "value")
		write := func(content string) {
			if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		write("1")
		parse := func(contents [][]byte) (string, error) {
			if bytes.HasPrefix(contents[0], []byte("bad")) {
				return "", errors.New("bad content")
			}
			return string(contents[0]), nil
		}
		reports := 0
		var last error
		v, err := New([]string{path}, parse, func(files string, err error) {
			reports++
			last = err
			if files != path {
				t.Errorf("got a report of %s, want %s", files, path)
			}
		})
		if err != nil {
			t.Fatal(err)
		}
		for i, step := range []struct {
			content string // "": the file is removed
			after   time.Duration
			value   string
			version int
			reports int
			failed  bool // the last report
		}{
			{"1", 0, "1", 0, 0, false},
			{"2", 0, "1", 0, 0, false}, // too early
			{"2", interval, "2", 1, 1, false},
			{"2", interval, "2", 1, 1, false},
			{"bad", interval, "2", 1, 2, true},
			{"bad", interval, "2", 1, 2, true},
			{"2", interval, "2", 1, 3, false},
			{"", interval, "2", 1, 4, true},
			{"", interval, "2", 1, 4, true},
			{"2", interval, "2", 1, 5, false},
			{"3", interval, "3", 2, 6, false},
		} {
			write(step.content)
			if step.content == "" {
				_ = os.Remove(path)
			}
			time.Sleep(step.after)
			value, version := v.Get()
			if value != step.value || version != step.version || reports != step.reports || (last != nil) != step.failed {
				t.Errorf("step %d: got value %q, version %d, %d reports, last error %v, want %+v", i, value, version, reports,
					last, step)
			}
		}
		write("4")
		if value, _ := v.Get(); v.Reload() != nil || value != "3" {
			t.Errorf("got value %q before it is read again, want 3", value)
		}
		if value, version := v.Get(); value != "4" || version != 3 {
			t.Errorf("got value %q, version %d, want 4 and 3", value, version)
		}
		write("bad")
		if err := v.Reload(); err == nil || v.Reload() == nil || reports != 8 {
			t.Errorf("got error %v and %d reports", err, reports)
		}
	})
}

func TestNew(t *testing.T) {
	path := filepath.Join(t.TempDir(), "value")
	parse := func([][]byte) (string, error) { return "", errors.New("bad content") }
	if _, err := New([]string{path}, parse, nil); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("without a file: got %v", err)
	}
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := New([]string{path}, parse, nil); err == nil || err.Error() != path+": bad content" {
		t.Errorf("got %v", err)
	}
}

func TestFixed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := Fixed("1")
		time.Sleep(time.Hour)
		if value, version := v.Get(); value != "1" || version != 0 || v.Reload() != nil {
			t.Errorf("got %q, version %d", value, version)
		}
		var none *Value[string]
		if value, version := none.Get(); value != "" || version != 0 {
			t.Errorf("got %q, version %d", value, version)
		}
	})
}
