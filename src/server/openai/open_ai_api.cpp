#include "server/openai/open_ai_api.h"

#include <ctime>

#include "engine/text_stream.h"
#include "openai/response.h"
#include "server/openai/answer.h"

namespace weir {
namespace {

using openai::ApiError;
using openai::Json;

void send_error(const ApiError& error, ResponseWriter& writer) {
  writer.send(error_response(error.status, error.type, error.code, error.message, error.param));
}

void send_json(const Json& json, ResponseWriter& writer) {
  writer.send(200, "application/json", openai::dump(json));
}

// The value, or null and the refusal sent.
template <typename T>
T* value_or_refuse(openai::Parsed<T>& parsed, ResponseWriter& writer) {
  if (auto* error = std::get_if<ApiError>(&parsed)) send_error(*error, writer);
  return std::get_if<T>(&parsed);
}

}  // namespace

OpenAiApi::OpenAiApi(const Model& model, const Engine& engine, OpenAiOptions options,
                     SubmitRequests submit, TenantOf tenant_of)
    : model_(model),
      options_(std::move(options)),
      submit_(std::move(submit)),
      tenant_of_(std::move(tenant_of)),
      tokenizer_(engine.tokenizer()),
      max_context_(engine.max_context()),
      created_(std::time(nullptr)),
      workers_(std::make_shared<Workers>(options_.n_threads)) {
  Result<ChatTemplate> chat_template = ChatTemplate::create(model.vocab_model());
  if (chat_template) template_ = std::move(*chat_template);
  preparer_ = std::make_unique<Preparer>(tokenizer_, template_ ? &*template_ : nullptr,
                                         max_context_, options_);
}

OpenAiApi::~OpenAiApi() { workers_->stop(); }

void OpenAiApi::add_routes(Router& router) {
  for (const std::string prefix : {"/v1", ""}) {
    router.add("POST", prefix + "/chat/completions", by_worker(&OpenAiApi::chat));
    router.add("POST", prefix + "/completions", by_worker(&OpenAiApi::completion));
    router.add("GET", prefix + "/models", by_worker(&OpenAiApi::list_models));
    router.add("GET", prefix + "/models/{id}", by_worker(&OpenAiApi::show_model));
  }
  router.add("POST", "/tokenize", by_worker(&OpenAiApi::tokenize));
  router.add("POST", "/detokenize", by_worker(&OpenAiApi::detokenize));
  router.add("POST", "/apply-template", by_worker(&OpenAiApi::apply_template));
}

HttpHandler OpenAiApi::by_worker(Work work) {
  return [this, work](const HttpRequest& request, Writer writer) {
    workers_->post([this, work, request = std::make_shared<const HttpRequest>(request),
                    writer = std::move(writer)] {
      if (!writer->is_gone()) (this->*work)(*request, writer);
    });
  };
}

// A header names the conversation for clients that cannot add fields.
template <typename Parsed>
bool OpenAiApi::take_conversation(const HttpRequest& request, Parsed& parsed,
                                  const Writer& writer) const {
  const std::string_view name = request.header("x-conversation");
  if (name.empty() || !parsed.conversation.empty()) return true;
  ApiError error;
  error.param = "X-Conversation";
  error.code = "invalid_value";
  if (const auto problem = openai::conversation_name_problem(name)) {
    error.message = *problem;
  } else if (parsed.n > 1) {
    error.message = "a conversation holds one reply; 'n' must be 1";
  } else {
    parsed.conversation = name;
    return true;
  }
  send_error(error, *writer);
  return false;
}

void OpenAiApi::chat(const HttpRequest& request, const Writer& writer) {
  openai::Parsed<openai::ChatRequest> parsed = openai::parse_chat_request(request.body);
  openai::ChatRequest* chat = value_or_refuse(parsed, *writer);
  if (!chat || !take_conversation(request, *chat, writer)) return;
  openai::Parsed<Prepared> prepared = preparer_->chat(*chat, tenant_of_(request.caller));
  if (Prepared* ready = value_or_refuse(prepared, *writer)) start(std::move(*ready), writer);
}

void OpenAiApi::completion(const HttpRequest& request, const Writer& writer) {
  openai::Parsed<openai::CompletionRequest> parsed = openai::parse_completion_request(request.body);
  openai::CompletionRequest* completion = value_or_refuse(parsed, *writer);
  if (!completion || !take_conversation(request, *completion, writer)) return;
  openai::Parsed<Prepared> prepared =
      preparer_->completion(*completion, tenant_of_(request.caller));
  if (Prepared* ready = value_or_refuse(prepared, *writer)) start(std::move(*ready), writer);
}

void OpenAiApi::start(Prepared prepared, const Writer& writer) {
  const openai::AnswerHead head{openai::random_id(prepared.is_chat ? "chatcmpl-" : "cmpl-"),
                                std::time(nullptr), options_.model_id, options_.version};
  std::vector<Submission> all(prepared.choices.size());
  for (size_t i = 0; i < all.size(); ++i) {
    all[i].request = std::move(prepared.choices[i].request);
  }
  const auto answer =
      std::make_shared<Answer>(std::move(prepared), head, tokenizer_, workers_, writer);
  for (size_t i = 0; i < all.size(); ++i) all[i].events = answer->events_of(i);
  Admission admission = submit_(std::move(all), *writer);
  if (admission.refusal) return writer->send(std::move(*admission.refusal));
  answer->set_cancel(std::move(admission.cancel));
}

void OpenAiApi::apply_template(const HttpRequest& request, const Writer& writer) {
  openai::Parsed<openai::ChatRequest> parsed = openai::parse_chat_request(request.body);
  openai::ChatRequest* chat = value_or_refuse(parsed, *writer);
  if (!chat) return;
  openai::Parsed<std::string> prompt = preparer_->render(*chat);
  if (std::string* text = value_or_refuse(prompt, *writer)) send_json({{"prompt", *text}}, *writer);
}

void OpenAiApi::tokenize(const HttpRequest& request, const Writer& writer) {
  openai::Parsed<openai::TokenizeRequest> parsed = openai::parse_tokenize_request(request.body);
  const openai::TokenizeRequest* wanted = value_or_refuse(parsed, *writer);
  if (!wanted) return;
  const Result<std::vector<Token>> tokens =
      tokenizer_.tokenize(wanted->content, wanted->add_special, wanted->parse_special);
  if (!tokens) return send_error(to_api_error(tokens.error()), *writer);
  Json list = Json::array();
  for (const Token token : *tokens) {
    if (!wanted->with_pieces) {
      list.push_back(token);
      continue;
    }
    // As llama-server has it: bytes where they are not text.
    const std::string piece = tokenizer_.piece(token, true);
    Json one = {{"id", token}};
    if (valid_utf8(piece) == piece) {
      one["piece"] = piece;
    } else {
      one["piece"] = Json::array();
      for (const char c : piece) one["piece"].push_back(static_cast<unsigned char>(c));
    }
    list.push_back(std::move(one));
  }
  send_json({{"tokens", std::move(list)}}, *writer);
}

void OpenAiApi::detokenize(const HttpRequest& request, const Writer& writer) {
  openai::Parsed<std::vector<int32_t>> parsed = openai::parse_detokenize_request(request.body);
  const std::vector<int32_t>* tokens = value_or_refuse(parsed, *writer);
  if (!tokens) return;
  for (const Token token : *tokens) {
    if (token >= tokenizer_.size()) {
      ApiError error;
      error.code = "invalid_value";
      error.param = "tokens";
      error.message = "token " + std::to_string(token) + " is not in the vocabulary of " +
                      std::to_string(tokenizer_.size());
      return send_error(error, *writer);
    }
  }
  send_json({{"content", tokenizer_.text(*tokens, true)}}, *writer);
}

Json OpenAiApi::model_json() const {
  return {{"id", options_.model_id},
          {"object", "model"},
          {"created", created_},
          {"owned_by", "weir"},
          {"meta",
           {{"description", model_.description()},
            {"n_ctx", max_context_},
            {"n_ctx_train", model_.geometry().max_context},
            {"n_vocab", model_.n_vocab()},
            {"n_params", model_.n_params()},
            {"size", model_.weight_bytes().v},
            {"has_chat_template", template_.has_value()}}}};
}

void OpenAiApi::list_models(const HttpRequest&, const Writer& writer) {
  send_json({{"object", "list"}, {"data", Json::array({model_json()})}}, *writer);
}

void OpenAiApi::show_model(const HttpRequest& request, const Writer& writer) {
  const std::string& id = request.params.at("id");
  if (id == options_.model_id) return send_json(model_json(), *writer);
  ApiError error;
  error.status = 404;
  error.type = "not_found_error";
  error.code = "model_not_found";
  error.param = "model";
  error.message = "there is no model of that name; this server has " + options_.model_id;
  send_error(error, *writer);
}

}  // namespace weir
