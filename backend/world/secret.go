package world

import (
	"crypto/ed25519"
	"crypto/hkdf"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"math/big"
	"os"
	"time"
)

// Secret is what the processes of a run share and no other process knows. Processes with
// other secrets cannot join.
type Secret []byte

// secretVariable names the environment variable with the path of the secret's file.
const secretVariable = "OCTET_SECRET_FILE"

// minSecret is the minimum size of a secret in bytes.
const minSecret = 16

// SecretFromEnv reads the file that OCTET_SECRET_FILE names; nil without the variable.
func SecretFromEnv(lookup func(string) (string, bool)) (Secret, error) {
	path, set := lookup(secretVariable)
	if !set {
		return nil, nil
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", secretVariable, err)
	}
	if len(text) < minSecret {
		return nil, fmt.Errorf("%s: %s has %d bytes: a secret has %d or more, such as those of head -c 32 /dev/urandom", secretVariable, path, len(text), minSecret)
	}
	return text, nil
}

// errSecret is the error of two processes with different secrets.
var errSecret = errors.New("the other process has another secret: all need the same " + secretVariable)

// tlsConfig returns the configuration of both ends of a connection. Each presents a
// certificate for a key that the secret gives, and requires that of the other end.
func (s Secret) tlsConfig() (*tls.Config, error) {
	seed, err := hkdf.Key(sha256.New, s, nil, "octet rendezvous", ed25519.SeedSize)
	if err != nil {
		return nil, err
	}
	key := ed25519.NewKeyFromSeed(seed)
	public := key.Public().(ed25519.PublicKey)
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC)}
	der, err := x509.CreateCertificate(nil, template, template, public, key)
	if err != nil {
		return nil, err
	}
	return &tls.Config{
		MinVersion:         tls.VersionTLS13,
		Certificates:       []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}},
		ClientAuth:         tls.RequireAnyClientCert,
		InsecureSkipVerify: true, //nolint:gosec // VerifyConnection compares the key with that of the secret
		VerifyConnection: func(c tls.ConnectionState) error {
			if len(c.PeerCertificates) != 1 {
				return errSecret
			}
			if theirs, ok := c.PeerCertificates[0].PublicKey.(ed25519.PublicKey); !ok || !theirs.Equal(public) {
				return errSecret
			}
			return nil
		},
	}, nil
}
