package untrusted

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

func TestBody(t *testing.T) {
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
			body, err := Body(response, limit, new(gzip.Reader))
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

func TestBodyRejects(t *testing.T) {
	zipped := &http.Response{Header: http.Header{"Content-Encoding": {"gzip"}}, Body: http.NoBody}
	if _, err := Body(zipped, 10, nil); reason.Of(err) != reason.BadFormat {
		t.Errorf("gzip that was not requested: got %v", err)
	}
	long := &http.Response{ContentLength: 11, Body: http.NoBody}
	if _, err := Body(long, 10, nil); reason.Of(err) != reason.BodyTooLarge {
		t.Errorf("a long body: got %v", err)
	}
	broken := errors.New("broken")
	body, err := Body(&http.Response{Body: io.NopCloser(iotest.ErrReader(broken))}, 10, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadAll(body); !errors.Is(err, broken) {
		t.Errorf("got %v, want %v", err, broken)
	}
}

func TestOpen(t *testing.T) {
	isText := func(contentType string) bool { return contentType == "text/plain" }
	for name, tt := range map[string]struct {
		code                  int
		contentType, encoding string
		body, want, location  string
		reason                reason.Reason
	}{
		"ok":           {code: 200, contentType: "text/plain", body: "text", want: "text"},
		"another type": {code: 200, contentType: "text/html", want: `content type "text/html"`, reason: reason.BadFormat},
		"long type": {code: 200, contentType: strings.Repeat("x", 1000),
			want: `content type "` + strings.Repeat("x", 100) + `"`, reason: reason.BadFormat},
		"status": {code: 403, body: " no\xff permission\n", want: `status 403 Forbidden, "no permission"`,
			reason: reason.Forbidden},
		"long status": {code: 500, body: strings.Repeat("x", 2000),
			want: `status 500 Internal Server Error, "` + strings.Repeat("x", 256) + `"`, reason: reason.ServerError},
		"compressed status": {code: 404, encoding: "gzip", body: compress("nothing"),
			want: `status 404 Not Found, "nothing"`, reason: reason.NotFound},
		"status without a body": {code: 204, encoding: "gzip", want: "status 204 No Content", reason: reason.BadStatus},
		"redirect": {code: 302, location: "/x", want: `status 302 Found, redirect to "/x" is not followed`,
			reason: reason.BadStatus},
	} {
		response := &http.Response{StatusCode: tt.code, Body: io.NopCloser(strings.NewReader(tt.body)), Header: http.Header{
			"Content-Type": {tt.contentType}, "Content-Encoding": {tt.encoding}, "Location": {tt.location},
		}}
		body, err := Open(response, isText, 1000, new(gzip.Reader))
		var got string
		if err == nil {
			text, _ := io.ReadAll(body)
			got = string(text)
		} else {
			got = err.Error()
		}
		if got != tt.want || reason.Of(err) != tt.reason {
			t.Errorf("%s: got %q and reason %q, want %q and %q", name, got, reason.Of(err), tt.want, tt.reason)
		}
	}
}
