package decode

import (
	"bytes"
	"hash/maphash"

	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

// index finds containers by their identity: a hash table with open addressing and linear probing
// whose memory is kept from one answer to the next. A Go map would need a key with strings, and so
// an allocation for every container.
type index struct {
	seed  maphash.Seed // secret, so that no kubelet can choose names that collide
	slots []slot       // a power of two of them, at most half of them taken
	taken int
}

// slot is a place in the table. The hash spares most comparisons of names.
type slot struct {
	hash   uint32
	number uint32 // that of the container, counted from 1; 0: the slot is free
}

const minSlots = 256

// reset empties the table. One that has grown for an answer much larger than the last is not kept.
func (x *index) reset() {
	if x.seed == (maphash.Seed{}) {
		x.seed = maphash.MakeSeed()
	}
	if len(x.slots) > minSlots && x.taken < len(x.slots)/8 {
		x.slots = nil
	}
	if x.slots == nil {
		x.slots = make([]slot, minSlots)
	}
	clear(x.slots)
	x.taken = 0
}

// find gives the position of a container, or -1 and where to put it. The hash is for put.
func (x *index) find(containers []usage.ContainerSample, id *identity) (i int, hash uint32) {
	hash = x.hash(id)
	mask := uint32(len(x.slots) - 1)
	for at := hash & mask; ; at = (at + 1) & mask {
		s := x.slots[at]
		if s.number == 0 {
			return -1, hash
		}
		if s.hash == hash && is(&containers[s.number-1], id) {
			return int(s.number - 1), hash
		}
	}
}

// put adds the container at position i, which must not be there yet.
func (x *index) put(i int, hash uint32) {
	if 2*(x.taken+1) > len(x.slots) {
		x.grow()
	}
	x.place(slot{hash: hash, number: uint32(i + 1)})
	x.taken++
}

func (x *index) place(s slot) {
	mask := uint32(len(x.slots) - 1)
	at := s.hash & mask
	for x.slots[at].number != 0 {
		at = (at + 1) & mask
	}
	x.slots[at] = s
}

func (x *index) grow() {
	old := x.slots
	x.slots = make([]slot, 2*len(old))
	for _, s := range old {
		if s.number != 0 {
			x.place(s)
		}
	}
}

func (x *index) hash(id *identity) uint32 {
	const odd = 0x9e3779b97f4a7c15 // spreads the parts, so that swapping two of them gives another hash
	h := maphash.Bytes(x.seed, id.pod)
	h = h*odd ^ maphash.Bytes(x.seed, id.container)
	h = h*odd ^ maphash.Bytes(x.seed, id.namespace)
	return uint32(h >> 32)
}

func is(c *usage.ContainerSample, id *identity) bool {
	return bytes.Equal(c.Pod, id.pod) && bytes.Equal(c.Name, id.container) && bytes.Equal(c.Namespace, id.namespace)
}
