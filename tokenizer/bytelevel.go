package tokenizer

import "fmt"

// Byte-level vocabularies write each byte as a printable character: itself if it is one, otherwise a
// character from U+0100 on, in the order of bytes (GPT-2's bytes_to_unicode). A space is Ġ.
var byteChars, charBytes = func() (chars [256]rune, back map[rune]byte) {
	back = map[rune]byte{}
	extra := rune(0x100)
	for b := range chars {
		r := rune(b)
		if !('!' <= r && r <= '~' || '¡' <= r && r <= '¬' || '®' <= r && r <= 'ÿ') {
			r = extra
			extra++
		}
		chars[b], back[r] = r, byte(b)
	}
	return chars, back
}()

// fromByteLevel returns the bytes that a token of a byte-level vocabulary stands for.
func fromByteLevel(token string) ([]byte, error) {
	raw := make([]byte, 0, len(token))
	for _, r := range token {
		b, ok := charBytes[r]
		if !ok {
			return nil, fmt.Errorf("token %q has %q, which stands for no byte", token, r)
		}
		raw = append(raw, b)
	}
	return raw, nil
}
