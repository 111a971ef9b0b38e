// Package identity gives a server in a cluster a serving certificate that the API server verifies, without anybody's help:
// it makes the certificate, keeps it in a Secret, tells the API server whom to trust, and renews it in time.
//
//	identity, err := identity.New(identity.Config{
//		Client:      config,
//		Secret:      "kube-vitals-serving",
//		Names:       []string{"kube-vitals.kube-system.svc"},
//		APIServices: []string{"v1.metrics.k8s.io", "v1beta1.metrics.k8s.io"},
//	})
//	...
//	serving.Cert = identity
//	go identity.Run(ctx)
//
// Each certificate is signed by a CA that was made for it alone and whose key is thrown away. So nothing in the cluster can
// sign for that CA again, and there is one kind of renewal only. It goes in three steps, each of which any replica takes
// that finds it due, and all replicas may try at once:
//
//  1. The next certificate is put into the Secret, beside the one that is served, and its CA into the bundle of CAs.
//  2. The bundle is put into the caBundle of every APIService, and given time to reach every API server.
//  3. The next certificate becomes the one that is served. Its predecessor's CA stays in the bundle until that certificate
//     has expired, so that a replica that has not heard of it yet is trusted as well.
//
// The Secret holds all state. It is written on condition that nobody has written it since it was read, and so are the
// APIServices, which are read before the Secret: whoever acts on what is not true any more writes nothing. There is no
// leader, and no lock that could be lost.
//
// What time it is, the API server says (the Date of its answers): it verifies the certificates, so its clock is the one that
// counts, and replicas whose own clocks differ do not undo each other's work.
//
// The package deliberately has no keys or algorithms to choose from, signs nothing for others, and leaves alone what does
// not lead to its own Service, or is not to be verified.
package identity
