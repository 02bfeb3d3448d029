// Starts `dsconfig lsp` and connects it to the editor; everything else is in the server.
const path = require("node:path");
const vscode = require("vscode");
const { LanguageClient } = require("vscode-languageclient/node");

const LANGUAGES = ["json", "jsonc", "hjson", "yaml", "python"];
let client;

/** The command of the settings; a relative path starts at the first workspace folder. */
function command() {
  const [program, ...args] = vscode.workspace.getConfiguration("dsconfig").get("command");
  const folder = vscode.workspace.workspaceFolders?.[0]?.uri.fsPath;
  const isPath = program.includes("/") || program.includes("\\");
  return { command: isPath && folder ? path.resolve(folder, program) : program, args };
}

async function start() {
  client = new LanguageClient("dsconfig", "dsconfig", command(), {
    documentSelector: LANGUAGES.map((language) => ({ language })),
  });
  try {
    await client.start();
  } catch (error) {
    const hint = 'Install it with: pip install "dsconfig-zero[lsp]", or set dsconfig.command.';
    vscode.window.showErrorMessage(`dsconfig lsp did not start: ${error.message ?? error}. ${hint}`);
  }
}

async function activate(context) {
  const restart = async () => {
    await client?.stop().catch(() => undefined);
    await start();
  };
  context.subscriptions.push(vscode.commands.registerCommand("dsconfig.restart", restart));
  await start();
}

module.exports = { activate, deactivate: () => client?.stop() };
