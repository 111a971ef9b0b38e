package sim

import (
	"context"
	"io"
	"net/http"
	"net/url"
	"strconv"

	"k8s.io/apimachinery/pkg/runtime"
)

// watchStream is a watch of a collection. It is the body of the response.
type watchStream struct {
	*io.PipeReader
	cancel func()

	api        *API
	collection target
	query      url.Values
	next       int // index of the next change in the history
}

// Close implements io.Closer.
func (w *watchStream) Close() error {
	w.cancel()
	return w.PipeReader.Close()
}

// watch starts a watch. Like a real API server, it sends the current objects if the request has no resource version,
// and ends the initial events of a list by a watch with a bookmark.
func (a *API) watch(r *http.Request, c target) *http.Response {
	query := r.URL.Query()
	isList, since := query.Get("sendInitialEvents") == "true", query.Get("resourceVersion")
	reader, writer := io.Pipe()
	ctx, cancel := context.WithCancel(r.Context())
	w := &watchStream{PipeReader: reader, cancel: cancel, api: a, collection: c, query: query, next: len(a.history)}
	var initial [][]byte
	if version, err := strconv.Atoi(since); err == nil && !isList && version > 0 {
		w.next = min(version, len(a.history)) // each change has the next version
	} else {
		for _, object := range a.selected(c, query) {
			initial = append(initial, event("ADDED", object))
		}
	}
	if isList {
		initial = append(initial, event("BOOKMARK", initialEventsEnd(c, strconv.Itoa(a.version))))
	}
	go w.run(ctx, writer, a.ended, initial)
	return a.response(200, runtime.ContentTypeJSON, w)
}

// run writes events until the watch ends.
func (w *watchStream) run(ctx context.Context, to *io.PipeWriter, ended <-chan struct{}, events [][]byte) {
	defer w.cancel()
	for {
		for _, event := range events {
			if _, err := to.Write(event); err != nil {
				return
			}
		}
		var changed <-chan struct{}
		if events, changed = w.changes(); events != nil {
			continue
		}
		select {
		case <-ctx.Done():
			_ = to.CloseWithError(ctx.Err())
			return
		case <-ended:
			_ = to.Close()
			return
		case <-changed:
		}
	}
}

// changes returns the events of changes that have not been returned yet, and a channel that the next one closes.
func (w *watchStream) changes() (events [][]byte, changed <-chan struct{}) {
	a := w.api
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, c := range a.history[w.next:] {
		o, _ := parse(c.path)
		switch {
		case !w.collection.has(o):
		case matches(c.object, w.query):
			events = append(events, event(c.event, c.object))
		case c.event == "MODIFIED": // it may have matched before
			events = append(events, event("DELETED", c.object))
		}
	}
	w.next = len(a.history)
	return events, a.changed
}

func event(kind string, object map[string]any) []byte {
	return encode(map[string]any{"type": kind, "object": object})
}
