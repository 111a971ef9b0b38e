package main

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/kube-vitals/kube-vitals/test/internal/program"
)

// attack is what attackers send over their connections.
type attack struct {
	name                   string
	connections, addresses int
	raw                    string // sent without TLS; "": requests
	http2                  bool
	token                  string // of each request: randomToken; "": none
	administrator          bool   // the attackers have the administrator's token
	request                func() malicious
}

// malicious is a request of an attacker.
type malicious struct {
	target  string
	headers int    // bytes of short headers
	body    int    // bytes
	bytes   string // sent after the handshake, in place of requests
	ends    bool   // the client closes the connection after these bytes
}

const randomToken = "random"

// random returns a text that no other request has.
func random() string { return fmt.Sprintf("%s-%x", mark, rand.Uint64()) }

func path(size int, query string) func() malicious {
	padding := strings.Repeat("x", size)
	return func() malicious { return malicious{target: "/" + random() + padding + query} }
}

func selector(text string) func() malicious {
	return func() malicious { return malicious{target: allPods + "?labelSelector=" + text} }
}

func headers(headers, body int) func() malicious {
	return func() malicious { return malicious{target: allPods + "?" + random(), headers: headers, body: body} }
}

// attacks returns those that were shown to harm servers, at and above the limits of kube-vitals.
func attacks() (list []attack) {
	requirements := func(size int) string { return strings.Repeat("a,", size/2) + "a" }
	values := "a+in+(" + strings.Repeat(strings.Repeat("v", 60)+",", 990) + "a)"
	handshake := "\x16\x03\x01\x02\x00\x01\x00\x01\xfc" + strings.Repeat("x", 71) // more should come
	list = []attack{
		{name: "paths of 1000 KiB", connections: 8, addresses: 1, request: path(1000<<10, "?timeout=1ns")},
		{name: "paths that are not UTF-8", connections: 8, addresses: 10, request: path(0, "%ff?timeout=1ns")},
		{name: "selectors of 1000 KiB", connections: 64, addresses: 1, request: selector(requirements(1000 << 10))},
		{name: "80 bytes of a handshake", connections: 128, addresses: 9, raw: handshake},
		{name: "80 bytes of a handshake, 2000 connections", connections: 2000, addresses: 10, raw: handshake},
		{name: "headers of 1 MiB, bodies", connections: 62, addresses: 1, http2: true, request: headers(1000<<10, 256<<10)},
		{name: "frames of 256 KiB that do not come", connections: 2000, addresses: 10, http2: true,
			request: func() malicious {
				return malicious{bytes: http2.ClientPreface + "\x04\x00\x00\x04\x00\x00\x00\x00\x00"}
			}},
		{name: "compressed headers of 1 MiB without an end", connections: 330, addresses: 10, http2: true,
			request: func() malicious { return malicious{bytes: opening(30000, false)} }},
		{name: "connections that end during a request", connections: 100, addresses: 10, http2: true,
			// with a frame of 256 KiB that does not come
			request: func() malicious {
				return malicious{bytes: opening(0, true) + "\x04\x00\x00\x00\x00\x00\x00\x00\x01", ends: true}
			}},
		{name: "no HTTP/2 after the handshake", connections: 20, addresses: 10, http2: true,
			request: func() malicious { return malicious{bytes: strings.Repeat("x", 100)} }},
		{name: "list by the administrator, bodies", connections: 62, addresses: 10, http2: true, administrator: true,
			request: func() malicious { return malicious{target: allNodes + "?limit=1", headers: 48 << 10, body: 200 << 10} }},
	}
	for _, http2 := range []bool{false, true} {
		for _, addresses := range []int{1, 10} {
			for _, token := range []string{"", randomToken} {
				name := map[bool]string{false: "HTTP/1.1", true: "HTTP/2"}[http2]
				name += fmt.Sprintf(", %d addresses, token %q: ", addresses, token)
				for _, r := range []struct {
					name    string
					request func() malicious
				}{
					{"paths of 7 KiB", path(7<<10, "?%74imeout=1ns&a;b")},
					{"selectors of 60 KiB", selector(requirements(60 << 10))},
					{"selectors of 991 values", selector(values)},
					{"headers of 48 KiB", headers(48<<10, 0)},
					{"bodies", headers(0, 200<<10)},
				} {
					list = append(list, attack{name: name + r.name, connections: 300, addresses: addresses, http2: http2,
						token: token, request: r.request})
				}
			}
		}
	}
	return list
}

// opening returns the first frames of a client of HTTP/2: settings without a window, and short headers, which the last
// frame may end.
func opening(headers int, end bool) string {
	var b bytes.Buffer
	b.WriteString(http2.ClientPreface)
	framer := http2.NewFramer(&b, nil)
	_ = framer.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0})
	var block bytes.Buffer
	encoder := hpack.NewEncoder(&block)
	for _, field := range [][2]string{
		{":method", http.MethodGet}, {":scheme", "https"}, {":authority", "localhost"}, {":path", allPods},
	} {
		_ = encoder.WriteField(hpack.HeaderField{Name: field[0], Value: field[1]})
	}
	for range headers {
		_ = encoder.WriteField(hpack.HeaderField{Name: "x", Value: "y"})
	}
	_ = framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: block.Next(frameSize), EndHeaders: end})
	for block.Len() > 0 {
		_ = framer.WriteContinuation(1, false, block.Next(frameSize))
	}
	return b.String()
}

// requester sends requests of an attacker over one connection.
type requester struct {
	token string
	sent  *atomic.Int64
}

func (r *requester) authorization() string {
	if r.token == randomToken {
		return random()
	}
	return r.token
}

// pipeline sends requests of HTTP/1.1 until the connection ends.
func (r *requester) pipeline(ctx context.Context, conn net.Conn, next func() malicious) {
	in := bufio.NewReader(conn)
	for ctx.Err() == nil {
		request := next()
		var text bytes.Buffer
		fmt.Fprintf(&text, "GET %s HTTP/1.1\r\nHost: localhost\r\n", request.target)
		if token := r.authorization(); token != "" {
			fmt.Fprintf(&text, "Authorization: Bearer %s\r\n", token)
		}
		for i := 0; i < request.headers/20; i++ {
			fmt.Fprintf(&text, "X-%07d: yyyyyyy\r\n", i)
		}
		if request.body > 0 {
			fmt.Fprintf(&text, "Content-Length: %d\r\n", request.body+1) // one byte does not come
		}
		text.WriteString("\r\n")
		text.Write(make([]byte, request.body))
		if _, err := conn.Write(text.Bytes()); err != nil {
			return
		}
		r.sent.Add(1)
		response, err := http.ReadResponse(in, nil)
		if err != nil {
			return
		}
		_, err = io.Copy(io.Discard, response.Body)
		if response.Body.Close() != nil || err != nil {
			return
		}
	}
}

// maxStreams is how many requests of HTTP/2 a client keeps open, as many as servers allow.
const maxStreams = 100

// streams sends requests of HTTP/2 until the connection ends. It accepts no body of a response, and resets streams
// that have a response.
func (r *requester) streams(ctx context.Context, conn net.Conn, next func() malicious) {
	var mu sync.Mutex // of writes
	framer := http2.NewFramer(conn, conn)
	framer.SetReuseFrames()
	if text := next().bytes; text != "" {
		_, _ = io.WriteString(conn, text)
		r.sent.Add(1)
		if next().ends {
			_ = program.Sleep(ctx, 20*time.Millisecond) // until the server has read them
			return
		}
		_, _ = io.Copy(io.Discard, conn)
		return
	}
	_, _ = io.WriteString(conn, http2.ClientPreface)
	if framer.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0}) != nil {
		return
	}
	free := make(chan bool, maxStreams)
	for range maxStreams {
		free <- true
	}
	ended := make(chan bool)
	go func() {
		defer close(ended)
		for {
			frame, err := framer.ReadFrame()
			if err != nil {
				return
			}
			if h := frame.Header(); h.Type == http2.FrameHeaders {
				mu.Lock()
				_ = framer.WriteRSTStream(h.StreamID, http2.ErrCodeCancel)
				mu.Unlock()
				free <- true
			}
		}
	}()
	for stream := uint32(1); ; stream += 2 {
		select {
		case <-free:
		case <-ended:
			return
		case <-ctx.Done():
			return
		}
		request := next()
		mu.Lock()
		err := r.writeStream(framer, stream, request)
		mu.Unlock()
		if err != nil {
			return
		}
		r.sent.Add(1)
		if request.body > 0 { // bodies remain in the server's buffers
			_ = program.Sleep(ctx, time.Millisecond)
		}
	}
}

// frameSize is the size of frames that every server accepts.
const frameSize = 16 << 10

func (r *requester) writeStream(framer *http2.Framer, stream uint32, request malicious) error {
	var block bytes.Buffer
	encoder := hpack.NewEncoder(&block)
	field := func(name, value string) {
		_ = encoder.WriteField(hpack.HeaderField{Name: name, Value: value, Sensitive: name[0] != ':' && name != "x"})
	}
	field(":method", http.MethodGet)
	field(":scheme", "https")
	field(":authority", "localhost")
	field(":path", request.target)
	if token := r.authorization(); token != "" {
		field("authorization", "Bearer "+token)
	}
	for range request.headers / 34 { // as the protocol counts: 32 bytes for each
		field("x", "y") // an index of one byte
	}
	for first := true; first || block.Len() > 0; first = false {
		fragment := block.Next(frameSize)
		var err error
		if first {
			err = framer.WriteHeaders(http2.HeadersFrameParam{
				StreamID: stream, BlockFragment: fragment, EndHeaders: block.Len() == 0, EndStream: request.body == 0,
			})
		} else {
			err = framer.WriteContinuation(stream, block.Len() == 0, fragment)
		}
		if err != nil {
			return err
		}
	}
	for sent := 0; sent < request.body; sent += frameSize {
		if err := framer.WriteData(stream, false, make([]byte, frameSize)); err != nil {
			return err
		}
	}
	return nil
}
