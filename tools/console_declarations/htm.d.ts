type Tag = (literals: TemplateStringsArray, ...values: unknown[]) => any;
declare const htm: { bind(h: unknown): Tag };
export default htm;
