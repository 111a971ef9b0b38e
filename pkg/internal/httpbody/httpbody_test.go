package httpbody

import (
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/kube-vitals/kube-vitals/pkg/reason"
)

func compress(text string) string {
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	_, _ = io.WriteString(w, text)
	_ = w.Close()
	return b.String()
}

func TestOpen(t *testing.T) {
	const limit = 1000
	most, more := strings.Repeat("x", limit), strings.Repeat("x", limit+1)
	for name, tt := range map[string]struct {
		encoding, body string
		want           string
		reason         reason.Reason
	}{
		"plain":            {"", "text", "text", ""},
		"identity":         {"Identity", "text", "text", ""},
		"most":             {"", most, most, ""},
		"more":             {"", more, most, reason.BodyTooLarge},
		"gzip":             {"GZIP", compress("text"), "text", ""},
		"most gzip":        {"gzip", compress(most), most, ""},
		"more gzip":        {"gzip", compress(more), most, reason.BodyTooLarge},
		"gzip of nothing":  {"gzip", strings.Repeat(compress(""), limit), "", reason.BodyTooLarge},
		"empty gzip":       {"gzip", "", "", reason.Truncated},
		"cut gzip":         {"gzip", compress("text")[:20], "", reason.Truncated},
		"not gzip":         {"gzip", "this is not gzip", "", reason.BadFormat},
		"corrupt gzip":     {"gzip", "\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff\xff\xff\xff\xff", "", reason.BadFormat},
		"unknown encoding": {"zstd", "text", "", reason.BadFormat},
	} {
		for _, wrap := range []func(io.Reader) io.Reader{iotest.OneByteReader, iotest.DataErrReader} {
			response := &http.Response{Header: http.Header{}, Body: io.NopCloser(wrap(strings.NewReader(tt.body)))}
			response.Header.Set("Content-Encoding", tt.encoding)
			body, err := Open(response, limit, new(gzip.Reader))
			var got []byte
			if err == nil {
				got, err = io.ReadAll(body)
			}
			if reason.Of(err) != tt.reason || tt.reason != reason.Truncated && string(got) != tt.want {
				t.Errorf("%s: got %d bytes, error %v, want %d bytes and reason %q", name, len(got), err, len(tt.want), tt.reason)
			}
		}
	}
}

func TestOpenRejects(t *testing.T) {
	zipped := &http.Response{Header: http.Header{"Content-Encoding": {"gzip"}}, Body: http.NoBody}
	if _, err := Open(zipped, 10, nil); reason.Of(err) != reason.BadFormat {
		t.Errorf("gzip that was not requested: got %v", err)
	}
	long := &http.Response{ContentLength: 11, Body: http.NoBody}
	if _, err := Open(long, 10, nil); reason.Of(err) != reason.BodyTooLarge {
		t.Errorf("a long body: got %v", err)
	}
	broken := errors.New("broken")
	body, err := Open(&http.Response{Body: io.NopCloser(iotest.ErrReader(broken))}, 10, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadAll(body); !errors.Is(err, broken) {
		t.Errorf("got %v, want %v", err, broken)
	}
}
