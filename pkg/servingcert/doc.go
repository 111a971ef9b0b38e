// Package servingcert keeps a serving certificate that the API server verifies: it creates the
// certificate, stores it in a Secret, writes its CA into the caBundle of the APIServices, and
// renews it before it expires.
//
// # The life of a certificate
//
// With the defaults, a certificate is valid for 90 days (Lifetime), and a new CA is published 10
// minutes (Settle) before it is relied on:
//
//  1. Install. The Secret is empty. A replica creates a certificate and its CA, and writes both into
//     the Secret. All replicas serve it at once, since no API server trusts any other yet.
//  2. The CA is written into the caBundle of every APIService, and into the ConfigMap if there is one.
//     The replica is ready.
//  3. Day 60, the last third of the certificate's life. A replica creates the next certificate and
//     writes it into the Secret beside the current one, and its CA into the bundle. The bundle is
//     written into the APIServices. The current certificate is still served.
//  4. 10 minutes later. The next certificate becomes the current one and is served. The previous one
//     stays in the Secret without its key, and its CA in the bundle, for replicas that have not
//     seen the renewal.
//  5. Day 90. The previous certificate has expired. It is removed, and its CA is removed from the
//     bundle. From here on, steps 3 to 5 repeat.
//
// Every replica performs whichever step is due, and several may try at the same time. There is no
// leader and no lock. The Secret holds all state. It is updated with the resourceVersion that was
// read, so the update fails if the Secret has changed since. The same holds for the APIServices and
// the ConfigMap, which are read before the Secret. So a replica with outdated state writes nothing.
//
// # What can go wrong
//
//   - The Secret is deleted or emptied: a replica that still serves the certificate restores it and
//     starts a renewal, since the key may have leaked. A new replica waits 10 s for such a replica,
//     then creates a new certificate.
//   - The Secret is overwritten with another certificate, such as a backup: if it has expired, or if the
//     caBundles do not have its CA, it is treated like a lost one. A valid one that the caBundles trust
//     is served.
//   - A caBundle is changed: it is restored at once.
//   - The bundle contains another CA: it is removed. The bundle holds the CAs of the previous, the
//     current and the next certificate and nothing else.
//   - The Secret cannot be written: the certificate in it is served, and its CA written into the caBundles,
//     until it expires. Nothing is renewed, which the log says.
//   - A certificate in the Secret outlives Lifetime: it is renewed.
//   - The API server cannot be reached: the current certificate is served.
//   - An APIService leads to another Service, or skips verification: it is not changed. The
//     Monitor of the Manager logs and reports it. A server with a certificate from another source
//     can run a Monitor without a Manager.
//
// # Security
//
// Every certificate has a CA of its own, whose key is discarded after signing. So nothing in the
// cluster can sign for a trusted CA, and a certificate and its CA are always renewed together. There is
// no choice of keys or algorithms, and nothing is signed for others. Clients other than the API server
// can read the CAs from the ConfigMap, so they need no access to the Secret with the key.
package servingcert
