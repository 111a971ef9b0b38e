// Package identity provides a serving certificate that the API server verifies, without anybody's
// help: it makes the certificate, keeps it in a Secret, writes its CA into the caBundle of the
// APIServices, and renews it in time.
//
//	identity, err := servingcert.New(servingcert.Config{
//		Client:      config,
//		Secret:      "kube-vitals-serving",
//		Names:       []string{"kube-vitals.kube-system.svc"},
//		APIServices: []string{"v1.metrics.k8s.io", "v1beta1.metrics.k8s.io"},
//	})
//	...
//	serving.Cert = identity
//	go identity.Run(ctx)
//
// Each certificate is signed by a CA that was made for it alone and whose key is thrown away. So
// nothing in the cluster can sign for that CA again, and there is one kind of renewal only. It has
// three steps. Each of them is taken by any replica that finds it due, and all replicas may try at
// once:
//
//  1. The next certificate is put into the Secret, beside the one that is served, and its CA into the bundle of CAs.
//  2. The bundle is put into the caBundle of every APIService, and given time to reach every API server.
//  3. The next certificate becomes the one that is served. Its predecessor stays in the Secret, without its key, and its CA in
//     the bundle, so that a replica that has not seen the renewal yet is trusted as well. Both go when the certificate has
//     expired, or with the next renewal.
//
// The bundle holds the CAs of these certificates and nothing else. Whatever somebody else adds to
// it is removed.
//
// Clients other than the API server find the same bundle in a ConfigMap, if Config names one, so
// that they need not read the Secret with the key. It is written together with the caBundles;
// without it, everything else works.
//
// The Secret holds all state. It is written on condition that nobody has written it since it was
// read, and so are the APIServices and the ConfigMap, which are read before the Secret: a replica
// that acts on outdated state writes nothing. There is no leader, and no lock that could be lost.
//
// A Monitor reports APIServices that do not lead to this server, or that skip verification. A
// Manager has one; a server with a certificate from elsewhere can run one by itself.
//
// The time is the API server's (the Date of its responses): it verifies the certificates, so its
// clock is the one that counts, and replicas whose own clocks differ do not undo each other's work.
//
// The package deliberately has no keys or algorithms to choose from, signs nothing for others, and
// leaves alone the caBundle of an APIService that does not lead to its own Service, or that skips
// verification.
package servingcert
