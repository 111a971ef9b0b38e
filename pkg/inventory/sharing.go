package inventory

// maxSharedContainers is the number of containers up to which a pod shares their names with others.
// It bounds the time for which the Index is locked.
const maxSharedContainers = 64

// sharing holds one copy of each text for all objects with an equal one, for as long as such an
// object exists: labels, and names of namespaces, nodes and containers.
//
// The standard library's unique does not fit: its handles, which objects would have to hold, take
// 36 bytes more per pod in BenchmarkMemory.
type sharing map[string]*sharedText

type sharedText struct {
	text string
	refs int // number of times it was shared
}

// share returns the shared copy of a text. Each call must be paired with a
// releaseText.
func (s sharing) share(text string) string {
	v := s[text]
	if v == nil {
		v = &sharedText{text: text}
		s[text] = v
	}
	v.refs++
	return v.text
}

func (s sharing) releaseText(text string) {
	if v := s[text]; v.refs > 1 {
		v.refs--
	} else {
		delete(s, text)
	}
}

// adopt replaces the texts of an object by shared ones.
func (s sharing) adopt(o *Object) {
	if o.indexed {
		o.Labels = Labels(s.share(string(o.Labels)))
	}
	o.Namespace = s.share(o.Namespace)
	o.Node = s.share(o.Node)
	if len(o.Containers) <= maxSharedContainers {
		for i := range o.Containers {
			o.Containers[i].Name = s.share(o.Containers[i].Name)
		}
	}
}

// release undoes adopt. It does not change the object, which readers may hold.
func (s sharing) release(o *Object) {
	if o.indexed {
		s.releaseText(string(o.Labels))
	}
	s.releaseText(o.Namespace)
	s.releaseText(o.Node)
	if len(o.Containers) <= maxSharedContainers {
		for i := range o.Containers {
			s.releaseText(o.Containers[i].Name)
		}
	}
}
