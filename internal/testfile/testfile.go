// Package testfile reads files for tests.
package testfile

import (
	"os"
	"testing"
)

// Read returns the content of a file, without which the test fails.
func Read(t testing.TB, file string) []byte {
	t.Helper()
	content, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return content
}
