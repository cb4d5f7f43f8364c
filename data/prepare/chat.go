package prepare

import (
	"fmt"
	"slices"
	"strings"

	"octet/tokenizer"
)

// How a conversation is written.
const (
	ChatML      = "chatml" // <|im_start|>user\n...<|im_end|>\n, as Qwen writes it
	ChatLlama3  = "llama3" // <|start_header_id|>user<|end_header_id|>\n\n...<|eot_id|>
	ChatPlain   = "plain"  // user: ...\n\nassistant: ..., without special tokens
	begins3     = "<|begin_of_text|>"
	header3     = "<|start_header_id|>"
	endHeader3  = "<|end_header_id|>"
	endTurn3    = "<|eot_id|>"
	startChatML = "<|im_start|>"
	endChatML   = "<|im_end|>"
)

// Chats are the names of the ways to write a conversation.
var Chats = []string{ChatML, ChatLlama3, ChatPlain}

var chatTokens = map[string][]string{
	ChatML:     {startChatML, endChatML},
	ChatLlama3: {begins3, header3, endHeader3, endTurn3},
	ChatPlain:  nil,
}

func checkChat(chat string, tok *tokenizer.Tokenizer) error {
	if !slices.Contains(Chats, chat) {
		return badInput("--chat %q: expected %s", chat, strings.Join(Chats, ", "))
	}
	for _, token := range chatTokens[chat] {
		if _, ok := tok.ID(token); !ok {
			return badInput("--chat %s writes the token %s, which the tokenizer lacks: use another tokenizer or --chat %s", chat, token, ChatPlain)
		}
	}
	return nil
}

// message is a message of a conversation.
type message struct{ role, content []byte }

var roles = []string{"system", "user", "assistant", "tool"}

func checkMessages(list []message) error {
	if len(list) == 0 {
		return fmt.Errorf("the conversation has no messages")
	}
	answers := 0
	for i, m := range list {
		if !slices.Contains(roles, string(m.role)) {
			return fmt.Errorf("message %d has the role %.80q: expected %s", i+1, m.role, strings.Join(roles, ", "))
		}
		if string(m.role) == "assistant" {
			answers++
		}
	}
	if answers == 0 {
		return fmt.Errorf("no assistant message, so no token counts in the loss: remove the conversation")
	}
	return nil
}

// segment is a piece of a document: text, or a token.
type segment struct {
	text   []byte
	token  int32 // −1: text
	answer bool  // it counts in the loss
}

// chatWriter writes conversations as segments.
type chatWriter struct {
	chat string
	ids  map[string]int32
	end  int32 // of text
	list []segment
}

func newChatWriter(o *Options) chatWriter {
	c := chatWriter{chat: o.Chat, ids: map[string]int32{}, end: o.Tokenizer.EndOfText}
	for _, token := range chatTokens[o.Chat] {
		c.ids[token], _ = o.Tokenizer.ID(token)
	}
	return c
}

// text writes text. It is one segment with the text before it, unless only one of them counts.
func (c *chatWriter) text(s []byte, answer bool) {
	if n := len(c.list); n > 0 && c.list[n-1].token < 0 && c.list[n-1].answer == answer {
		c.list[n-1].text = slices.Concat(c.list[n-1].text, s)
	} else if len(s) > 0 {
		c.list = append(c.list, segment{text: s, token: -1, answer: answer})
	}
}

func (c *chatWriter) token(name string, answer bool) {
	c.list = append(c.list, segment{token: c.ids[name], answer: answer})
}

// write returns the segments of a conversation, valid until the next call. The end of text follows
// them unless they end with it.
func (c *chatWriter) write(messages []message) []segment {
	c.list = c.list[:0]
	if c.chat == ChatLlama3 {
		c.token(begins3, false)
	}
	for i, m := range messages {
		answer := string(m.role) == "assistant"
		last := i == len(messages)-1
		switch c.chat {
		case ChatML:
			c.token(startChatML, false)
			c.text(append(slices.Clip(m.role), '\n'), false)
			c.text(m.content, answer)
			c.token(endChatML, answer)
			if !last || c.ids[endChatML] != c.end {
				c.text([]byte("\n"), false)
			}
		case ChatLlama3:
			role := m.role
			if string(role) == "tool" {
				role = []byte("ipython")
			}
			c.token(header3, false)
			c.text(role, false)
			c.token(endHeader3, false)
			c.text([]byte("\n\n"), false)
			c.text(trimSpace(m.content), answer)
			c.token(endTurn3, answer)
		default:
			c.text(append(slices.Clip(m.role), ':'), false)
			end := "\n\n"
			if last {
				end = ""
			}
			c.text(slices.Concat([]byte(" "), m.content, []byte(end)), answer)
		}
	}
	return c.list
}
