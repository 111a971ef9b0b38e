// Package pins remembers the public keys of kubelets that sign their certificates themselves.
//
// The key of a node's kubelet is pinned at first sight: the first key that a kubelet proves to have
// is stored in a ConfigMap, and from then on no other key is accepted for that node. A key is in
// use only after it has been stored. So a restart does not begin again, and all replicas use the
// same keys.
//
//	data:
//	  n7: sha256:5f0b… 1c7fe2a4-…   # the key of the kubelet of node n7, and the UID of that Node
//	  n8: ca 93d81b5e-…             # a CA has verified the kubelet of n8: it needs no pin
//
// # When a pin changes
//
//   - A CA verifies the kubelet's certificate: the pin is replaced by "ca". The node's certificates
//     must be verified by a CA from then on, so that an attacker cannot replace a verified
//     certificate by a self-signed one.
//   - The Node is created again, with another UID: the next key is pinned.
//   - An administrator writes the new key into the entry, or removes the entry. Then the next key is
//     pinned.
//   - The Node has been deleted: its entry is removed within 10 minutes.
//
// # Replicas
//
// There is no leader. The ConfigMap is updated with the resourceVersion that was read. If two
// replicas see different keys, the one that is stored first counts; the other replica refuses its
// key. The content of the ConfigMap comes from a watch only.
//
// # What can go wrong
//
//   - The ConfigMap is deleted: known keys stay in use, and no others can be pinned until it exists
//     again. Then, or if it is replaced by an empty one, each key is pinned again at first sight: who
//     may delete it may as well change the entries.
//   - The API server is unavailable: known keys stay in use; new ones wait.
//   - The ConfigMap is full: further nodes cannot be pinned. It has room for 6,000 nodes.
//   - Something removes the entries again and again: the writes are limited, see writeBurst.
package pins
