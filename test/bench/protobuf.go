package main

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
)

// countProtobuf counts the items of a list in Kubernetes' protobuf encoding. It does not decode
// them, which would cost as much CPU as the server that is being measured.
func countProtobuf(body []byte) (items int, err error) {
	unknown, ok := bytes.CutPrefix(body, []byte("k8s\x00"))
	if !ok {
		return 0, errors.New("the answer is not protobuf")
	}
	// runtime.Unknown has the object in its field 2, and a list has its items in its field 2.
	err = eachField(unknown, func(number uint64, raw []byte) error {
		if number != 2 {
			return nil
		}
		return eachField(raw, func(number uint64, _ []byte) error {
			if number == 2 {
				items++
			}
			return nil
		})
	})
	return items, err
}

// eachField calls f for each field of a message, which must all be length-delimited.
func eachField(message []byte, f func(number uint64, content []byte) error) error {
	for len(message) > 0 {
		tag, n := binary.Uvarint(message)
		if n <= 0 || tag&7 != 2 {
			return fmt.Errorf("the answer is damaged %d bytes before its end", len(message))
		}
		length, m := binary.Uvarint(message[n:])
		if m <= 0 || length > uint64(len(message)-n-m) {
			return fmt.Errorf("the answer is damaged %d bytes before its end", len(message))
		}
		message = message[n+m:]
		if err := f(tag>>3, message[:length]); err != nil {
			return err
		}
		message = message[length:]
	}
	return nil
}
