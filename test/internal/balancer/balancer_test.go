package balancer

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"testing"
)

// endpoint answers each line with its own name.
func endpoint(t *testing.T, name string) (address string) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				for lines := bufio.NewScanner(conn); lines.Scan(); {
					fmt.Fprintln(conn, name)
				}
			}()
		}
	}()
	return listener.Addr().String()
}

// ask sends a line and gives what comes back.
func ask(conn net.Conn) string {
	fmt.Fprintln(conn)
	answer, err := bufio.NewReader(conn).ReadString('\n')
	if err != nil {
		return err.Error()
	}
	return answer[:len(answer)-1]
}

func TestBalancer(t *testing.T) {
	b, err := Start()
	if err != nil {
		t.Fatal(err)
	}
	connect := func() net.Conn {
		conn, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", b.Port()))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		return conn
	}
	if got := ask(connect()); got != io.EOF.Error() {
		t.Errorf("without endpoints: %q", got)
	}
	one, two := endpoint(t, "one"), endpoint(t, "two")
	b.Add(one)
	kept := connect()
	if got := ask(kept); got != "one" {
		t.Errorf("the only endpoint: %q", got)
	}
	b.Add(two)
	if first, second := ask(connect()), ask(connect()); first == second {
		t.Errorf("two endpoints, but both times %s", first)
	}
	b.Remove(one)
	for range 3 {
		if got := ask(connect()); got != "two" {
			t.Errorf("after the removal of one: %q", got)
		}
	}
	if got := ask(kept); got != "one" {
		t.Errorf("a connection of the time before: %q", got)
	}
	b.Close()
	if got := ask(kept); got == "one" {
		t.Error("a connection outlives the balancer")
	}
}
